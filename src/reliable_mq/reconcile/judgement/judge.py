"""The judge: computes one verdict for each message and consumer group from their events. Pure.

Receives all events of any number of messages, and the world. Returns a table `VERDICTS`: for each
row the verdict, the facts that decided it, and their evidence. The decision table is used on whole
columns: the facts of a row are the digits of one number, which is an index of `TABLE`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.log_roles import DEAD
from reliable_mq.reconcile.judgement.event_rows import column_of
from reliable_mq.reconcile.judgement.events import (
    IN_DOUBT,
    NO_TIME,
    SKIPPED,
    TOMBSTONE,
    VOIDED,
    id_times,
    unpacked_ids,
)
from reliable_mq.reconcile.judgement.facts import Case, facts_of, second_stubs
from reliable_mq.reconcile.judgement.spread_rows import ROLE, SpreadRows, rows_of
from reliable_mq.reconcile.judgement.traces import (
    NO_NUMBER,
    Traces,
    firsts_of,
    spread,
    text_column,
    traces_of,
    values_at,
)
from reliable_mq.reconcile.judgement.verdict import FACTS, FINDINGS, RULES, Verdict
from reliable_mq.reconcile.judgement.world import QueueOffsets, World, microseconds

_TEXT = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_INT, _LONG = pa.int32(), pa.int64()
_OTHERS_SHOWN_MAX = 20
_NO_STATE = np.iinfo(np.int8).min

# Details that decide no verdict. `spark_judge` reads them for findings only.
DETAILS = {
    **dict.fromkeys(("message_key", "ordering_key", "stub_note", "log_owner"), pa.string()),
    "stub_given_up_by": pa.string(),
    "stub_resend_time": _TIME,
}
VERDICTS = pa.schema(
    [
        ("message_id", pa.string()),
        *((name, _TEXT) for name in ("consumer_group", "topic", "verdict")),
        ("finding", pa.bool_()),
        ("message_time", _TIME),
        ("is_lead", pa.bool_()),
        ("stub_seq", _LONG),
        *((f"stub_{name}", _INT) for name in ("status", "count")),
        *((f"stub_{name}", _TIME) for name in ("create_date", "update_date")),
        ("stub_broker_name", _TEXT),
        ("stub_queue_id", _INT),
        ("stub_offset", _LONG),
        ("stub_content_size", _LONG),
        ("stub_content_crc", _INT),
        ("other_stub_create_date", _TIME),
        ("record_copies", _INT),
        ("record_broker_name", _TEXT),
        ("record_queue_id", _INT),
        *((f"record_{name}", _LONG) for name in ("queue_offset", "commit_log_offset", "size")),
        ("record_content_crc", _INT),
        ("record_store_time", _TIME),
        ("other_commit_log_offsets", pa.list_(_LONG)),
        ("differing_commit_log_offset", _LONG),
        ("differing_content_crc", _INT),
        ("differing_topic", _TEXT),
        *((name, _LONG) for name in ("progress", "queue_begin")),
        ("retries", _INT),
        ("dead_letter_offset", _LONG),
        ("dead_letter_reason", pa.string()),
        *((f"log_{name}", _INT) for name in ("state", "attempt")),
        *((f"log_{name}", _TIME) for name in ("lease_until", "create_date", "consume_date")),
        ("log_broker_name", _TEXT),
        ("other_consume_date", _TIME),
        ("log_in_doubt", pa.bool_()),
        ("log_skipped", pa.bool_()),
        *((f"{name}_ms", _LONG) for name in ("stored", "delivered", "effect", "consumed")),
        *DETAILS.items(),
        *((f"fact_{name}", _TEXT) for name in FACTS),
    ]
)


def judge(events: pa.Table, world: World) -> pa.Table:
    """Return the verdicts (`VERDICTS`) on the messages of `events` (`EVENTS`)."""
    return judge_traces(traces_of(events), world)


def judge_traces(
    traces: Traces, world: World, unseen: Mapping[bytes, int] = MappingProxyType({})
) -> pa.Table:
    """Return the verdicts on the messages of traces; see `judge`.

    Args:
        traces: all events of the messages. Messages of `unseen` are folded (`fold`).
        world: the moment and the state of the cluster.
        unseen: packed message id -> number of first deliveries that were folded away.
    """
    rows = rows_of(traces)
    case = Case(
        traces=traces,
        rows=rows,
        world=world,
        progress=QueueOffsets(world.progress),
        begins=QueueOffsets(world.begins),
        born=_creation_times(traces, rows),
        unseen=_unseen(traces, unseen),
    )
    facts = facts_of(case)
    verdict = TABLE[tuple(facts[name] for name in FACTS)]
    columns = _messages(case) | _stubs(case) | _records(case) | _logs(case)
    columns |= _latencies(case)
    columns |= {name: pa.nulls(len(rows), kind) for name, kind in DETAILS.items()}
    columns["verdict"] = _coded(verdict, tuple(map(str, Verdict)))
    columns["finding"] = pa.array(_IS_FINDING[verdict])
    columns |= {f"fact_{name}": _coded(facts[name], FACTS[name]) for name in FACTS}
    result = pa.table([columns[field.name] for field in VERDICTS], schema=VERDICTS)
    is_asked = _is_asked(case)
    return result if is_asked.all() else result.filter(pa.array(is_asked))


def _table() -> np.ndarray:
    """Return the decision table as an array with one axis for each fact."""
    numbers = {verdict: number for number, verdict in enumerate(Verdict)}
    table = np.zeros([len(values) for values in FACTS.values()], np.uint8)
    for rule in reversed(RULES):
        wanted = (rule.when.get(name, values) for name, values in FACTS.items())
        places = [
            [values.index(value) for value in chosen]
            for values, chosen in zip(FACTS.values(), wanted, strict=True)
        ]
        table[np.ix_(*places)] = numbers[rule.verdict]
    return table


TABLE = _table()
"""For every combination of `FACTS`, the number of the verdict (its position in `Verdict`)."""
_IS_FINDING = np.array([verdict in FINDINGS for verdict in Verdict])


def _creation_times(traces: Traces, rows: SpreadRows) -> np.ndarray:
    """Return the time of each message: from its id, or else the time of its first event."""
    said = id_times(traces.ids)
    if (said != NO_TIME).all():
        return said
    first = np.full(len(said), np.iinfo(np.int64).max)
    for events, column in ((rows.logs, "seen"), (rows.records, "changed")):
        known = events[traces[column][events] != NO_TIME]
        np.minimum.at(first, traces.message[known], traces[column][known])
    created = values_at(traces["seen"], rows.stub, int(NO_TIME))
    first = np.where(created != NO_TIME, np.minimum(first, created), first)
    return np.where(said != NO_TIME, said, np.where(first < np.iinfo(np.int64).max, first, NO_TIME))


def _unseen(traces: Traces, unseen: Mapping[bytes, int]) -> np.ndarray:
    counts = np.zeros(len(traces.ids), np.int64)
    for identity, count in unseen.items():
        place = pc.index(traces.ids, pa.scalar(identity, pa.binary())).as_py()
        if place >= 0:
            counts[place] = count
    return counts


def _is_asked(case: Case) -> np.ndarray:
    """Say for each row whether its message is in the requested time range."""
    born, world = case.born, case.world
    is_asked = np.ones(len(born), bool)
    if world.since is not None:
        is_asked &= born >= microseconds(world.since)
    if world.until is not None:
        is_asked &= (born < microseconds(world.until)) & (born != NO_TIME)
    of_rows: np.ndarray = is_asked[case.rows.message]
    return of_rows


def _coded(codes: np.ndarray, values: tuple[str, ...]) -> pa.Array:
    indices = pa.array(codes.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))


def _of(case: Case, name: str, events: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return the values of a column at `events`. The index -1 gives null."""
    column = case.traces[name]
    nothing = np.iinfo(column.dtype).min
    values = values_at(column, events, nothing)
    if pa.types.is_int32(kind) and column.dtype.itemsize < np.dtype(np.int32).itemsize:
        values = np.where(values == nothing, NO_NUMBER, values.astype(np.int32))
    return column_of(values, kind)


def _named(case: Case, name: str, events: np.ndarray) -> pa.Array:
    names = case.traces.names[name]
    return text_column(names, values_at(names.codes, events, -1))


def _messages(case: Case) -> dict[str, pa.Array]:
    rows = case.rows
    is_lead = np.zeros(len(rows), bool)
    is_lead[rows.start] = True
    return {
        "message_id": unpacked_ids(case.traces.ids).take(pa.array(rows.message)),
        "consumer_group": text_column(rows.groups, rows.group),
        "topic": text_column(case.traces.names["topic"], case.topic),
        "message_time": column_of(case.born[rows.message], _TIME),
        "is_lead": pa.array(is_lead),
    }


def _stubs(case: Case) -> dict[str, pa.Array]:
    numbers = {
        "seq": ("log_offset", _LONG),
        "count": ("tries", _INT),
        "create_date": ("seen", _TIME),
        "update_date": ("changed", _TIME),
        "queue_id": ("queue_id", _INT),
        "offset": ("queue_offset", _LONG),
        "content_size": ("size", _LONG),
        "content_crc": ("crc", _INT),
    }
    found = {
        f"stub_{name}": _of(case, column, case.stub, kind)
        for name, (column, kind) in numbers.items()
    }
    state = values_at(case.traces["state"], case.stub, int(_NO_STATE))
    status = np.where(state == TOMBSTONE, VOIDED, state)
    found["stub_status"] = column_of(np.where(status < 0, NO_NUMBER, status.astype(np.int32)), _INT)
    other = second_stubs(case)[case.rows.message]
    return found | {
        "stub_broker_name": _named(case, "broker", case.stub),
        "other_stub_create_date": _of(case, "seen", other, _TIME),
    }


def _records(case: Case) -> dict[str, pa.Array]:
    rows, traces = case.rows, case.traces
    first = _right_firsts(case)[rows.message]
    stranded = traces.message[rows.stranded]
    unlisted = firsts_of(
        stranded, len(rows.start), traces["log_offset"][rows.stranded], rows.stranded
    )
    stored = np.where(rows.delay >= 0, rows.delay, unlisted)[rows.message]
    record = np.where(first >= 0, first, stored)
    copies = np.bincount(traces.message[rows.firsts], minlength=len(rows.start))
    numbers = {
        "queue_id": ("queue_id", _INT),
        "queue_offset": ("queue_offset", _LONG),
        "commit_log_offset": ("log_offset", _LONG),
        "size": ("size", _LONG),
        "content_crc": ("crc", _INT),
        "store_time": ("seen", _TIME),
    }
    found = {
        f"record_{name}": _of(case, column, record, kind)
        for name, (column, kind) in numbers.items()
    }
    place = np.where(first >= 0, first, case.stub)
    queue = values_at(traces["queue_id"], place, int(NO_NUMBER))
    store = values_at(case.stores.codes, place, 0)
    names = [(case.stores, store), (traces.names["topic"], case.topic)]
    return found | {
        "record_copies": pa.array((copies + case.unseen)[rows.message].astype(np.int32)),
        "record_broker_name": _named(case, "broker", record),
        "other_commit_log_offsets": _other_offsets(case, copies),
        **_differing(case),
        "progress": column_of(case.done(np.arange(len(rows)), place), _LONG),
        "queue_begin": column_of(case.begins.of(names, queue), _LONG),
        **_copies(case),
    }


def _right_firsts(case: Case) -> np.ndarray:
    """Return for each message the first delivery for its evidence: one that matches the stub."""
    rows, traces, others = case.rows, case.traces, case.pairs.others
    if len(others) == 0:
        return rows.first
    right = np.setdiff1d(rows.firsts, others)
    order = traces["log_offset"][right]
    found = firsts_of(traces.message[right], len(rows.start), order, right)
    return np.where(found >= 0, found, rows.first)


def _other_offsets(case: Case, copies: np.ndarray) -> pa.Array:
    """Return the log offsets of further first deliveries, at most `_OTHERS_SHOWN_MAX` each."""
    rows, traces = case.rows, case.traces
    message = traces.message[rows.firsts]
    others = rows.firsts[copies[message] > 1]
    others = others[np.lexsort((traces["log_offset"][others], traces.message[others]))]
    begin = np.searchsorted(traces.message[others], rows.message)
    counts = np.clip(copies[rows.message] - 1, 0, _OTHERS_SHOWN_MAX)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    values = traces["log_offset"][others[spread(begin + 1, counts)]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, _LONG))


def _differing(case: Case) -> dict[str, pa.Array]:
    rows, traces = case.rows, case.traces
    others = case.pairs.others
    order = traces["log_offset"][others]
    other = firsts_of(traces.message[others], len(rows.start), order, others)[rows.message]
    return {
        "differing_commit_log_offset": _of(case, "log_offset", other, _LONG),
        "differing_content_crc": _of(case, "crc", other, _INT),
        "differing_topic": _named(case, "topic", other),
    }


def _copies(case: Case) -> dict[str, pa.Array]:
    """Return the retries and dead letters of each row's consumer group."""
    rows, traces = case.rows, case.traces
    retries = np.zeros(len(rows), np.int32)
    np.maximum.at(retries, rows.row_of_copy, traces["tries"][rows.copies])
    is_dead = traces["state"][rows.copies] == ROLE[DEAD]
    dead = rows.copies[is_dead]
    place = firsts_of(rows.row_of_copy[is_dead], len(rows), traces["log_offset"][dead], dead)
    return {
        "retries": pa.array(retries),
        "dead_letter_offset": _of(case, "log_offset", place, _LONG),
        "dead_letter_reason": _named(case, "reason", place).cast(pa.string()),
    }


def _logs(case: Case) -> dict[str, pa.Array]:
    numbers = {
        "state": ("state", _INT),
        "attempt": ("tries", _INT),
        "lease_until": ("until", _TIME),
        "create_date": ("seen", _TIME),
        "consume_date": ("changed", _TIME),
    }
    marks = values_at(case.traces["marks"], case.rows.log, 0)
    found = {
        f"log_{name}": _of(case, column, case.rows.log, kind)
        for name, (column, kind) in numbers.items()
    }
    return found | {
        "log_broker_name": _named(case, "broker", case.rows.log),
        "other_consume_date": _of(case, "changed", case.second_effect, _TIME),
        "log_in_doubt": pa.array((marks & IN_DOUBT) != 0),
        "log_skipped": pa.array((marks & SKIPPED) != 0),
    }


def _latencies(case: Case) -> dict[str, pa.Array]:
    """Return the times between the stations of each message; see `flow.WAYS`."""
    traces, rows = case.traces, case.rows
    first, delay = rows.first[rows.message], rows.delay[rows.message]
    created, due = (values_at(traces[name], case.stub, int(NO_TIME)) for name in ("seen", "until"))
    delivered = values_at(traces["seen"], first, int(NO_TIME))
    stored = values_at(traces["seen"], np.where(delay >= 0, delay, first), int(NO_TIME))
    consumed = values_at(traces["changed"], rows.log, int(NO_TIME))
    spans = {
        "stored_ms": (created, stored),
        "delivered_ms": (due, delivered),
        "effect_ms": (delivered, consumed),
        "consumed_ms": (created, consumed),
    }
    return {name: column_of(_milliseconds(*span), _LONG) for name, span in spans.items()}


def _milliseconds(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    is_known = (begin != NO_TIME) & (end != NO_TIME)
    return np.where(is_known, end // 1_000 - begin // 1_000, NO_TIME)
