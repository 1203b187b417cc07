"""The scan of log bytes, held against the plain decoder and against the facts of the format."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reconcile.ledgers import LONG_AGO, StoreWriter, message_id, milliseconds
from tests.reconcile.plain_scan import rows_of, scan

from reliable_mq.client.consuming.pulling import received
from reliable_mq.errors import StoreError
from reliable_mq.message import MessageQueue
from reliable_mq.reconcile.brokers.file_queues import read_progress
from reliable_mq.reconcile.brokers.file_store import (
    LogPartition,
    StoreLayout,
    read_layout,
)
from reliable_mq.reconcile.brokers.log_scan import LogRow, ScanEnd
from reliable_mq.reconcile.judgement import unchecked
from reliable_mq.wire import compression
from reliable_mq.wire.compression import KINDS, compress, flags_of
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    Record,
    body_checksum,
    encode_blank,
    iter_records,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record

names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
hosts = st.sampled_from([pack_host("10.0.0.1", 10911), pack_host("2001:db8::1", 10911)])


@st.composite
def records(draw: st.DrawFn) -> Record:
    extra = draw(st.dictionaries(names, names, max_size=3))
    identity = draw(st.one_of(st.none(), st.just(message_id(draw(st.integers(0, 2**60))))))
    known = {"UNIQ_KEY": identity} if identity else {}
    pairs = draw(st.permutations([*extra.items(), *known.items()]))
    return Record(
        topic=draw(st.sampled_from(["orders", "t" * 200, "%RETRY%payments"])),
        body=draw(st.binary(max_size=200)),
        properties=encode_properties(dict(pairs)),
        queue_id=draw(st.integers(0, 100)),
        queue_offset=draw(st.integers(0, 2**40)),
        born_time_ms=draw(st.integers(0, 2**42)),
        born_host=draw(hosts),
        store_time_ms=draw(st.integers(0, 2**42)),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 16)),
    )


def placed(found: list[Record], log_offset: int = 0) -> bytes:
    data = b""
    for record in found:
        record.commit_log_offset = log_offset + len(data)
        data += encode_record(record)
    return data


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records(), max_size=5), st.integers(0, 2**40))
def test_the_scan_reads_what_the_plain_decoder_reads(found: list[Record], at: int) -> None:
    data = placed(found, at)

    rows, used, end = scan(data, at, check_body=True)

    assert (used, end) == (len(data), ScanEnd.CUT)
    for row, record in zip(rows, iter_records(data), strict=True):
        assert row.queue_topic == record.topic
        host, port = record.store_host[:-4], int.from_bytes(record.store_host[-4:])
        offset_id = encode_offset_message_id(host, port, record.commit_log_offset)
        assert row.message_id == (record.property_map().get("UNIQ_KEY") or offset_id)
        assert row.content_crc == row.body_crc == body_checksum(record.body)
        assert (row.commit_log_offset, row.size) == (record.commit_log_offset, record.size)
        assert (row.queue_id, row.queue_offset) == (record.queue_id, record.queue_offset)
        assert (row.born_time, row.store_time) == (record.born_time_ms, record.store_time_ms)
        assert row.reconsume_times == record.reconsume_times


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_bytes_cut_anywhere_give_the_records_before_the_cut(
    found: list[Record], data: st.DataObject
) -> None:
    whole = placed(found)
    cut = data.draw(st.integers(0, len(whole) - 1))

    rows, used, end = scan(whole[:cut], 0, check_body=False)

    assert end is ScanEnd.CUT
    assert used <= cut
    assert [row.commit_log_offset for row in rows] == [
        record.commit_log_offset for record in iter_records(whole[:used])
    ]


@pytest.mark.parametrize(
    ("tail", "end"),
    [(bytes(100), ScanEnd.INVALID), (encode_blank(4096) + bytes(92), ScanEnd.BLANK)],
)
def test_the_scan_stops_at_zeros_and_at_the_blank_of_a_segment(tail: bytes, end: ScanEnd) -> None:
    data = placed([Record(topic="orders", body=b"1")])

    rows, used, why = scan(data + tail, 0, check_body=False)

    assert (len(rows), used, why) == (1, len(data), end)


def test_a_record_that_says_it_lies_elsewhere_is_not_believed() -> None:
    data = placed([Record(topic="orders", body=b"1")], log_offset=500)

    assert scan(data, 0, check_body=False) == ([], 0, ScanEnd.INVALID)


def test_a_property_whose_name_only_ends_like_the_id_is_not_the_id() -> None:
    record = Record(topic="orders", body=b"", properties=b"MY_UNIQ_KEY\x01no\x02UNIQ_KEY\x01yes")

    (row,) = scan(placed([record]), 0, check_body=False)[0]

    assert row.message_id == "yes"


@pytest.mark.parametrize("name", ["A" * 300, "a\0b", "é"])
def test_a_scan_calls_a_message_as_its_consumers_do(name: str) -> None:
    record = Record(topic="orders", body=b"", properties=encode_properties({"UNIQ_KEY": name}))
    came = received(record, MessageQueue("orders", "a", 0))

    (row,) = scan(placed([record]), 0, check_body=False)[0]

    assert row.message_id == came.message_id


def test_a_compressed_body_has_the_checksum_of_what_was_sent() -> None:
    """Given bodies compressed by clients, then their checksums are those of the stubs' contents;
    what only claims to be compressed has that of what it is, what nobody knows none."""
    body = b"paid" * 500
    flags = [flags_of(kind) for kind in KINDS]
    packed = [compress(body, kind) for kind in KINDS]

    def crcs(*bodies: bytes, flags: Iterable[int]) -> list[int | None]:
        pairs = zip(bodies, flags, strict=True)
        records = [Record(topic="orders", body=each, sys_flag=flag) for each, flag in pairs]
        rows, _, _ = scan(placed(records), 0, check_body=True)
        return [row.content_crc for row in rows]

    assert crcs(*packed, flags=flags) == [body_checksum(body)] * len(KINDS)
    assert crcs(*[body] * len(KINDS), flags=flags) == [body_checksum(body)] * len(KINDS)
    assert crcs(body, flags=[0x1 | 0x500]) == [None]


def test_what_nothing_here_unpacks_has_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an extra that is not installed, then a body compressed by it is not checked, and a run
    says so."""
    monkeypatch.setattr(compression, "_codec", lambda _: None)
    packed = Record(topic="orders", body=b"?", sys_flag=flags_of("lz4"))

    (row,) = scan(placed([packed]), 0, check_body=True)[0]

    assert row.content_crc is None
    assert "pip install 'reliable-mq[lz4]'" in (unchecked.flaw(3) or "")
    assert unchecked.flaw(0) is None


def test_copies_in_topics_of_the_system_are_told_from_first_deliveries(tmp_path: Path) -> None:
    store = StoreWriter(tmp_path)
    identity = {"UNIQ_KEY": message_id(1)}
    origin = {**identity, "RETRY_TOPIC": "orders"}
    delayed = {**identity, "REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "5"}
    retried = {**origin, "REAL_TOPIC": "%RETRY%payments", "DELAY": "3"}
    store.add("orders", b"1", properties=identity)
    store.add("SCHEDULE_TOPIC_XXXX", b"1", properties=delayed, queue_id=4)
    store.add("SCHEDULE_TOPIC_XXXX", b"1", properties=retried, queue_id=2, reconsume_times=1)
    store.add("%RETRY%payments", b"1", properties=origin, reconsume_times=1)
    store.add("%DLQ%payments", b"1", properties={**origin, "DEAD_LETTER_REASON": "no"})
    store.add("RMQ_SYS_TRANS_HALF_TOPIC", b"1", properties=identity)

    rows = all_rows(read_layout(store.write()))

    assert [(row.role, row.topic, row.consumer_group) for row in rows] == [
        ("first", "orders", None),
        ("delayed", "orders", None),
        ("retry delayed", "orders", "payments"),
        ("retry", "orders", "payments"),
        ("dead", "orders", "payments"),
        ("system", "RMQ_SYS_TRANS_HALF_TOPIC", None),
    ]
    assert [row.delay_level for row in rows[1:3]] == [5, 3]
    assert rows[4].reason == "no"


def all_rows(layout: StoreLayout) -> list[LogRow]:
    return [row for partition in layout.partitions for row in rows_of(partition, check_body=True)]


def filled(tmp_path: Path, count: int = 1500) -> StoreWriter:
    store = StoreWriter(tmp_path, segment_size=64 * 1024)
    for number in range(count):
        later = LONG_AGO + timedelta(milliseconds=number)
        identity = message_id(number, later)
        store.send(identity, bytes(number % 200), queue_id=number % 3, store_time=later)
    return store


def test_partitions_end_between_records_and_lose_none(tmp_path: Path) -> None:
    """Given segments with blanks at their ends and a pre-allocated next one, when they are split
    small, then every record is in exactly one partition."""
    layout = read_layout(filled(tmp_path).write(), split_size=20_000)

    rows = all_rows(layout)

    assert len(layout.partitions) > 10
    assert len({partition.path for partition in layout.partitions}) >= 4
    assert [row.message_id for row in rows] == [
        message_id(number, LONG_AGO + timedelta(milliseconds=number)) for number in range(1500)
    ]
    assert layout.sure_end == rows[-1].commit_log_offset + rows[-1].size


@pytest.mark.parametrize(
    ("at", "garbage"),
    [
        *((0, bytes(91)), (1, b"\xff"), (2, b"\x02"), (4, b"\xff"), (34, b"\xff")),
        *((84, b"\x7f"), (86, b"\x01"), (86, b"\xff")),
    ],
    ids=["zeros", "huge", "size", "magic", "place", "body length", "longer body", "body too long"],
)
def test_a_damaged_record_is_damage_and_the_scan_goes_on_behind_it(
    at: int, garbage: bytes, tmp_path: Path
) -> None:
    store = filled(tmp_path)
    layout = read_layout(store.write())
    victim = all_rows(layout)[700]
    partition = next(p for p in layout.partitions if p.start <= victim.commit_log_offset < p.stop)
    with Path(partition.path).open("r+b") as file:
        file.seek(victim.commit_log_offset - partition.segment + at)
        file.write(garbage)

    rows = all_rows(layout)

    damage = [row for row in rows if row.role == "damaged"]
    assert [(row.commit_log_offset, row.size) for row in damage] == [
        (victim.commit_log_offset, victim.size)
    ]
    assert len(rows) == 1500
    assert victim.message_id not in {row.message_id for row in rows}


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    path = filled(tmp_path).write()
    (tmp_path / "commitlog" / f"{65536:020d}").unlink()

    rows = all_rows(read_layout(path))

    assert [(row.commit_log_offset, row.size) for row in rows if row.role == "damaged"] == [
        (65536, 65536)
    ]
    assert len(rows) < 1500


def test_a_torn_tail_behind_what_the_queues_know_is_the_end_and_no_damage(tmp_path: Path) -> None:
    """Given a running broker that is writing its next record, then half of it is not yet there."""
    store = StoreWriter(tmp_path)
    record = store.send(message_id(1), b"whole")
    path = store.write()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(record.size)
        file.write(encode_record(replace_offset(record))[:50])

    rows = all_rows(read_layout(path))

    assert [row.role for row in rows] == ["first"]


@pytest.mark.parametrize("properties", [{"UNIQ_KEY": message_id(2)}, {}])
def test_a_record_that_is_not_whole_yet_is_read_when_it_is(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    """Given a running broker that has written the next record but for a part of it."""
    store = StoreWriter(tmp_path)
    record = store.send(message_id(1), b"whole")
    path = store.write()
    text = encode_properties(properties)
    after = encode_record(msgspec.structs.replace(replace_offset(record), properties=text))
    halves = [after.replace(b"torn", b"to\0\0")]
    halves += [after[:-size].ljust(len(after), b"\0") for size in (3, len(text)) if text]
    log = tmp_path / "commitlog" / f"{0:020d}"
    for there, count in (*((half, 1) for half in halves), (after, 2)):
        with log.open("r+b") as file:
            file.seek(record.size)
            file.write(there)

        ids = [row.message_id for row in all_rows(read_layout(path))]

        assert ids[:1] == [message_id(1)]
        assert len(ids) == count


def replace_offset(record: Record) -> Record:
    return Record(topic="orders", body=b"torn", commit_log_offset=record.size)


def test_a_log_without_consume_queues_is_read_in_whole_segments(tmp_path: Path) -> None:
    path = filled(tmp_path).write()
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")

    layout = read_layout(path, split_size=20_000)

    assert len(all_rows(layout)) == 1500
    assert len(layout.partitions) == len({partition.path for partition in layout.partitions})


def test_queues_tell_the_first_message_that_the_log_still_has(tmp_path: Path) -> None:
    path = filled(tmp_path).write()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()

    layout = read_layout(path)

    firsts: dict[tuple[str, int | None], int | None] = {}
    for row in all_rows(layout):
        firsts.setdefault(("orders", row.queue_id), row.queue_offset)
    assert layout.log_begin == 65536
    assert layout.queue_begins == firsts
    assert min(layout.queue_begins.values()) > 0


def test_a_partition_is_read_alike_after_its_segment_grew(tmp_path: Path) -> None:
    layout = read_layout(filled(tmp_path).write())
    first: LogPartition = layout.partitions[0]

    assert list(rows_of(first, check_body=False)) == list(
        rows_of(replace(first, sure_end=0), check_body=False)
    )


def test_offsets_are_read_as_fastjson_writes_them(tmp_path: Path) -> None:
    store = StoreWriter(tmp_path)
    store.commit("payments", "orders", 3, 17)
    store.commit("payments", "%RETRY%payments", 0, 2)
    path = store.write()

    assert b"3:17" in (tmp_path / "config" / "consumerOffset.json").read_bytes()
    assert read_progress(path) == {
        ("payments", "orders"): {3: 17},
        ("payments", "%RETRY%payments"): {0: 2},
    }


def test_a_broken_offset_file_is_replaced_by_its_copy_or_named(tmp_path: Path) -> None:
    store = StoreWriter(tmp_path)
    store.commit("payments", "orders", 0, 5)
    path = store.write()
    config = tmp_path / "config"
    (config / "consumerOffset.json").rename(config / "consumerOffset.json.bak")
    (config / "consumerOffset.json").write_bytes(b"")

    assert read_progress(path) == {("payments", "orders"): {0: 5}}
    (config / "consumerOffset.json.bak").unlink()
    with pytest.raises(StoreError, match=r"consumerOffset\.json cannot be read"):
        read_progress(path)


@pytest.mark.parametrize(("folder", "what"), [("nowhere", "does not exist"), ("", "commitlog")])
def test_what_is_no_store_directory_is_said_so(tmp_path: Path, folder: str, what: str) -> None:
    with pytest.raises(StoreError, match=what):
        read_layout(str(tmp_path / folder))


def test_the_store_of_a_broker_that_got_no_message_yet_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("lock")

    assert read_layout(str(tmp_path)) == StoreLayout(0, 0, (), {})
    assert read_progress(str(tmp_path)) == {}


def test_a_folder_of_other_things_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "holiday.jpg").write_bytes(b"")

    with pytest.raises(StoreError, match=r"no segment, but holiday\.jpg"):
        read_layout(str(tmp_path))


def test_times_of_a_row_are_milliseconds(tmp_path: Path) -> None:
    store = StoreWriter(tmp_path)
    store.send(message_id(1), b"1")

    (row,) = all_rows(read_layout(store.write()))

    assert row.store_time == milliseconds(LONG_AGO)
