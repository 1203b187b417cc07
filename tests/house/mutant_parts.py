"""The parts of the source that mutants are made of, the tests of each, and equivalent mutants.

What runs are the tests that need neither PostgreSQL nor MySQL, Spark nor Java: they are quick, and
say the same of SQLite. Valkey is started once for each part that needs it.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class Part(NamedTuple):
    """Paths below `src/reliable_mq`, and paths below `tests`."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """Return the modules that are changed."""
        return _python_files(SOURCE / "reliable_mq", self.sources)

    def test_files(self) -> list[Path]:
        """Return the modules that may notice."""
        return _python_files(ROOT / "tests", self.tests)


def _python_files(root: Path, names: tuple[str, ...]) -> list[Path]:
    found = (
        path for name in names for path in ([root / name] if ".py" in name else root.glob(name))
    )
    return sorted(
        file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])
    )


PARTS = {
    # Damage of records is tried where records lie in a log.
    "wire": Part(
        ("wire",),
        (
            "wire",
            "test_decodable.py",
            "test_message_digest.py",
            "broker_core/store/test_commit_log.py",
            "broker_core/store/test_damaged_records.py",
            "broker_core/store/test_dispatch.py",
            "broker_core/store/test_lost_queue.py",
            "broker_core/store/test_message_index.py",
            "broker_core/test_alike_batches.py",
            "broker_core/test_batches.py",
            "broker_core/test_damaged_record.py",
            "broker_core/test_filtered_pull.py",
            "broker_core/test_requests.py",
            "broker_core/test_send_reply.py",
            "client/test_compression.py",
        ),
    ),
    # A store is opened, killed and read by a broker core, without a process or a socket.
    "store": Part(
        ("broker_core/store",),
        (
            "broker_core/store",
            *(
                f"broker_core/test_{name}.py"
                for name in (
                    *("alike_batches", "answers", "known_sends"),
                    *("damage_and_readers", "damaged_record", "damaged_unit"),
                    *("deleted_topics", "half_recovery", "housekeeping", "no_room", "pull"),
                    *("query", "statistics", "timer_crashes", "timers", "two_checkpoints"),
                    *("wrong_clock", "batches", "lasting_topics", "filtered_pull", "replies"),
                )
            ),
        ),
    ),
    # The shells of idempotent calls are tested with the application that declares them.
    "idempotency": Part(
        ("idempotency",),
        (
            "idempotency",
            "model/test_model.py",
            "testing/test_contracts.py",
            "app/test_business_keys.py",
            "app/test_calls_within_calls.py",
            "app/test_idempotent_calls.py",
            "app/test_idempotent_results.py",
        ),
    ),
    # What an application's transactions do with stubs, and a scheduler's reading of them.
    "outbox": Part(
        ("outbox",),
        (
            "outbox",
            "app/test_application.py",
            "app/test_half_transactions.py",
            "app/test_payloads.py",
            "app/test_shared_relays.py",
            "app/test_signatures.py",
            "app/test_signed_properties.py",
            "app/test_wrong_types.py",
            "resend/test_operator_actions.py",
            "resend/test_policy.py",
            "resend/test_scheduler.py",
        ),
    ),
    "assigned_queue": Part(
        ("client/consuming/assigned_queue.py",),
        tuple(
            f"client/test_{name}.py"
            for name in (
                *("assigned_queue", "assigned_queue_edges", "consumer_group", "handler_call"),
                "leases",
                *("moving_queues", "polling", "pulling", "rates", "settling", "bounded_memory"),
            )
        ),
    ),
    "judgement": Part(
        ("reconcile/judgement",),
        tuple(
            f"reconcile/test_{name}.py"
            for name in (
                *(
                    "begins",
                    "by_hand",
                    "clocks",
                    "conclusion",
                    "corpus",
                    "doubts",
                    "events",
                    "evidence",
                ),
                *("flow", "fold", "increments", "judge", "judge_places", "judged_values"),
                *("judged_facts", "judged_rows", "judging_tasks", "ledger_events", "tally"),
                *("increment_rules", "message_stream"),
                *("managed_topics", "moments", "report", "repair", "verdict"),
            )
        ),
    ),
}


class Equivalent(NamedTuple):
    """A mutant that no test can kill: its file below the package, function, and change."""

    file: str
    function: str
    before: str
    after: str


def _in(file: str, function: str, why: str, *changes: tuple[str, str]) -> dict[Equivalent, str]:
    return {Equivalent(file, function, *change): why for change in changes}


TUNED: dict[tuple[str, str], str] = {
    ("broker_core/store/log_walk.py", "_CHUNK"): "bytes that a walk reads at once",
    ("broker_core/store/log_walk.py", "_LOOK"): "bytes that are read for the head of a record",
    ("broker_core/store/timer_store.py", "_SEARCH_MAX"): "bytes of the log for each checkpoint",
    ("broker_core/store/message_index.py", "_SLICE_SIZE"): "bytes of the log in one turn",
    ("broker_core/store/message_index.py", "_PIECE"): "bytes that the index reads at once",
    ("broker_core/store/message_index.py", "_HEAD_SIZE"): "bytes read for the head of a record",
    ("broker_core/store/index_entries.py", "_RECORDS_MAX"): "records in one turn",
    ("broker_core/store/index_entries.py", "_NOTED_MAX"): "messages of notes in one turn",
    ("broker_core/store/index_entries.py", "_ENTRIES_MAX"): "entries in one turn",
    ("broker_core/store/index_entries.py", "_TOPICS_MAX"): "new topics in one turn",
    ("broker_core/store/indexed_topic.py", "_KNOWN_MAX"): "layouts that are remembered",
    ("broker_core/store/index_entries.py", "_LEARN_EVERY"): "how often a layout is learnt",
    ("broker_core/store/index_notes.py", "_NOTED_MAX"): "messages that are not read again",
    ("broker_core/store/index_notes.py", "_TOGETHER_MAX"): "messages of one note",
    ("broker_core/store/index_notes.py", "_MARKS_MAX"): "entries of a message that is not read",
    ("broker_core/store/index_notes.py", "_KEY_SIZE_MAX"): "length of a key that is not read",
}
"""By file and constant: with any other value a caller sees the same, only sooner or later."""

EQUIVALENT: dict[Equivalent, str] = {
    **_in(
        "wire/batch_body.py",
        "decode_alike",
        "what the quick way leaves to the general one is read the same there",
        ("len(buffer) < _FIXED_SIZE", "len(buffer) <= _FIXED_SIZE"),
    ),
    **_in(
        "wire/batch_body.py",
        "_decode_uniform",
        "what the quick way leaves to the general one is read the same there",
        ("len(buffer) < _FIXED_SIZE", "len(buffer) <= _FIXED_SIZE"),
        (
            "count, rest = divmod(len(buffer), size) if size > 0 else (0, 1)",
            "count, rest = divmod(len(buffer), size) if size > 0 else (1, 1)",
        ),
        (
            "rest or count < 2 or (not 0 <= body_length <= size - _FIXED_SIZE)",
            "rest or count < 3 or (not 0 <= body_length <= size - _FIXED_SIZE)",
        ),
        (
            "lengths = (columns[0], columns[4], columns[6])",
            "lengths = (columns[1], columns[4], columns[6])",
        ),
    ),
    **_in(
        "wire/record.py",
        "holds_records_of",
        "records of one size are looked at again as any others are",
        (
            "is_usual and first * count == len(buffer)",
            "is_usual and first // count == len(buffer)",
        ),
    ),
    **_in(
        "wire/record.py",
        "topic_length_at",
        "any negative length is refused",
        (
            "return (length if length <= TOPIC_V1_LENGTH_MAX else -1, at + 1)",
            "return (length if length <= TOPIC_V1_LENGTH_MAX else -2, at + 1)",
        ),
    ),
    **_in(
        "wire/java_hash.py",
        "tags_code",
        "the hash of a long tag is only remembered, too",
        ("len(tag) <= _REMEMBERED_LENGTH_MAX", "True"),
    ),
    **_in(
        "outbox/asyncio_listeners.py",
        "_called",
        "a coroutine that was made in a thread is awaited here, too",
        ("inspect.iscoroutinefunction(method)", "False"),
    ),
    **_in(
        "outbox/thread_open_halves.py",
        "OpenHalves.note_ended",
        "a half that was acknowledged and one that was left have both ended: neither is kept",
        (
            "event = HalfEvent.ACKNOWLEDGED if acknowledged else HalfEvent.FAILED",
            "event = HalfEvent.ACKNOWLEDGED if True else HalfEvent.FAILED",
        ),
        (
            "event = HalfEvent.ACKNOWLEDGED if acknowledged else HalfEvent.FAILED",
            "event = HalfEvent.ACKNOWLEDGED if False else HalfEvent.FAILED",
        ),
    ),
    **{
        each: why
        for function in ("packed_ids", "unpacked_ids", "id_times")
        for each, why in _in(
            "reconcile/judgement/events.py",
            function,
            "a lost id is neither as long as a number nor as a text of digits",
            (
                "sizes = pc.fill_null(pc.binary_length(ids), 0).to_numpy()",
                "sizes = pc.fill_null(pc.binary_length(ids), 1).to_numpy()",
            ),
        ).items()
    },
    **_in(
        "reconcile/judgement/events.py",
        "unpacked_ids",
        "where all are numbers, all texts are replaced",
        (
            "texts = ids if len(numbers) == len(ids) else _without_first_byte(ids, numbers)",
            "texts = ids if False else _without_first_byte(ids, numbers)",
        ),
    ),
    **_in(
        "reconcile/judgement/flow.py",
        "",
        "there are no more buckets than these",
        ("_BUCKETS = 64 * BUCKETS_PER_DOUBLING", "_BUCKETS = 65 * BUCKETS_PER_DOUBLING"),
    ),
    **_in(
        "reconcile/judgement/spread_rows.py",
        "_keys",
        "any negative number is below all keys",
        (
            "keys = keys[np.diff(keys, prepend=-1) > 0]",
            "keys = keys[np.diff(keys, prepend=-2) > 0]",
        ),
    ),
    **_in(
        "idempotency/held_keys.py",
        "holding",
        "a call that has ended is passed over",
        ("_innermost.reset(before)", "pass"),
    ),
    **_in(
        "outbox/payload.py",
        "_writer_of",
        "what holds no pydantic parts is written alike when they are looked for",
        (
            "return _write_with_pydantics if _holds_pydantics(schema) else _encode_json",
            "return _write_with_pydantics if True else _encode_json",
        ),
    ),
    **_in(
        "outbox/sql_stubs.py",
        "_Record.step",
        "one row is written by the statement for many, too",
        ("len(rows) == 1", "False"),
        ("len(rows) == 1", "len(rows) == 0"),
    ),
    **_in(
        "wire/record_encode.py",
        "record_sizes",
        "each record is then judged by itself",
        (
            "max(map(len, properties)) > PROPERTIES_SIZE_MAX or max(sizes) > RECORD_SIZE_MAX",
            "max(map(len, properties)) >= PROPERTIES_SIZE_MAX or max(sizes) > RECORD_SIZE_MAX",
        ),
        (
            "max(map(len, properties)) > PROPERTIES_SIZE_MAX or max(sizes) > RECORD_SIZE_MAX",
            "max(map(len, properties)) > PROPERTIES_SIZE_MAX or max(sizes) >= RECORD_SIZE_MAX",
        ),
    ),
    **_in(
        "wire/compact_header.py",
        "encode_compact",
        "2**15 is its own negative among 16 bits",
        (
            "code = (header.code + 32768 & 65535) - 32768",
            "code = (header.code - 32768 & 65535) - 32768",
        ),
    ),
    **{
        each: why
        for function in ("decode_command", "decode_typed")
        for each, why in _in(
            "wire/command.py",
            function,
            "so short a header has no room for too many fields",
            (
                "len(frame.header) > SHORT_HEADER_SIZE",
                "len(frame.header) >= SHORT_HEADER_SIZE",
            ),
            ("len(frame.header) > SHORT_HEADER_SIZE", "True"),
        ).items()
    },
    **_in(
        "wire/frame.py",
        "FrameReader.feed",
        "bytes are joined earlier than necessary",
        ("len(self._kept) + len(data) < self._wanted", "False"),
    ),
    **_in(
        "broker_core/store/index_entries.py",
        "_spread",
        "each place is written afterwards",
        ("spread = [0] * (count * len(values))", "spread = [1] * (count * len(values))"),
    ),
    **_in(
        "wire/properties.py",
        "property_value",
        "the end is behind a name, so never the first byte",
        (
            "return properties[begin:end] if end >= 0 else properties[begin:]",
            "return properties[begin:end] if end > 0 else properties[begin:]",
        ),
        (
            "return properties[begin:end] if end >= 0 else properties[begin:]",
            "return properties[begin:end] if end >= 1 else properties[begin:]",
        ),
    ),
    **_in(
        "broker_core/store/commit_log.py",
        "CommitLog.read_joined",
        "places without gaps are read at once by the general way, too",
        *(
            ("tuple(accumulate(sizes[:-1], initial=begin)) == begins", other)
            for other in (
                "False",
                "tuple(accumulate(sizes[:1], initial=begin)) == begins",
                "tuple(accumulate(sizes[:-2], initial=begin)) == begins",
                "tuple(accumulate(sizes[:-0], initial=begin)) == begins",
            )
        ),
    ),
    **_in(
        "client/consuming/assigned_queue.py",
        "",
        "an estimate of what Python keeps beside a message: one byte is no matter",
        ("MESSAGE_OVERHEAD = 1024", "MESSAGE_OVERHEAD = 1025"),
        ("MESSAGE_OVERHEAD = 1024", "MESSAGE_OVERHEAD = 1023"),
    ),
    **_in(
        "client/consuming/assigned_queue.py",
        "",
        "the stages need only differ from each other",
        ("HELD = 3", "HELD = 4"),
    ),
    **_in(
        "client/consuming/assigned_queue.py",
        "",
        "no offset is negative: any negative one says that the offset is unknown",
        ("OFFSET_UNKNOWN = -1", "OFFSET_UNKNOWN = -2"),
    ),
}
"""Each with the reason why what a caller sees stays the same."""
