"""The scan of many records at once, held against the plain one: they agree on any bytes."""

import zlib
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reconcile.ledgers import message_id
from tests.reconcile.plain_scan import scan
from tests.reconcile.test_log_scan import placed

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.log_columns import columns
from reliable_mq.reconcile.brokers.log_roles import RecordContext
from reliable_mq.reconcile.brokers.log_scan import ScanEnd
from reliable_mq.reconcile.brokers.log_schema import (
    LOG_SCHEMA,
    RECORD_SCHEMA,
    columns_of,
    log_batch,
)
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.record import Record, decode_record, encode_blank, pack_host

TOPICS = (
    *("orders", "orders", "refunds", "bücher", "t" * 200),
    *("%RETRY%payments", "%RETRY%payments_orders", "%RETRY%payments+orders", "%DLQ%payments"),
    *("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"),
)
CUSTOMS = RecordContext(
    pop_retries={"%RETRY%payments_orders": ("payments", "orders")},
    listed_from=lambda topic, queue_id: 2**40 + 400 if topic == "refunds" or queue_id == 2 else 0,
)
PIECES = (
    *(b"UNIQ_KEY\x01" + message_id(7).encode(), b"UNIQ_KEY\x01short", b"UNIQ_KEY\x01"),
    *(b"UNIQ_KEY\x01" + b"A" * 65, b"UNIQ_KEY\x01a\0b", "UNIQ_KEY\x01é".encode()),
    *(b"MY_UNIQ_KEY\x01no", b"UNIQ_KEY\x01\xff\xfe", b"UNIQ_", b"KEY\x01x", b"KEYS\x01k 1"),
    *(b"TAGS\x01paid", b"TAGS\x01", "TAGS\x01größe".encode(), b"HASTAGS\x01no", b"TAGS\x01\xff"),
    *(b"DELAY\x013", b"DELAY\x01999999999999", b"DELAY\x01\xc2\xb2", b"REAL_TOPIC\x01orders"),
    *(b"REAL_TOPIC\x01%RETRY%payments", b"RETRY_TOPIC\x01orders", b"DEAD_LETTER_REASON\x01no"),
    *(b"TIMER_OUT_MS\x011700000000000", b"TIMER_OUT_MS\x01" + b"9" * 30, b"", b"\x01", b"x"),
    b"ORIGIN_MESSAGE_ID\x01" + b"0A" * 16,
)
BODIES = (b"", b"paid" * 30, zlib.compress(b"paid" * 300), bytes(70_000))
HOSTS = (pack_host("10.0.0.1", 10911), pack_host("2001:db8::1", 10911))
SYS_FLAGS = (0, 0, 0, 0x1, 0x1 | 0x300, 0x1 | 0x100, 0x4, 0x8, 0xC)
LONGS = (0, 1, 1_700_000_000_000, 2**62, -5, -(2**63))

numbers = st.integers(0, 3)
records = st.builds(
    Record,
    topic=st.sampled_from(TOPICS),
    body=st.sampled_from(BODIES),
    properties=st.lists(st.sampled_from(PIECES), max_size=6).map(b"\x02".join),
    queue_id=numbers,
    queue_offset=st.sampled_from(LONGS),
    sys_flag=st.sampled_from(SYS_FLAGS),
    born_time_ms=st.sampled_from(LONGS),
    born_host=st.sampled_from(HOSTS),
    store_time_ms=st.sampled_from(LONGS),
    store_host=st.sampled_from(HOSTS),
    reconsume_times=numbers,
)
damages = st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=2)
tails = st.sampled_from([b"", bytes(100), encode_blank(4096) + bytes(20), b"\xda\xa3\x20\xa7" * 30])

# The first call loads Arrow's kernels, which takes seconds on a busy machine.
patient = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

few = settings(patient, max_examples=25)


def spoiled(data: bytes, damage: list[tuple[float, int]]) -> bytes:
    found = bytearray(data)
    for where, change in damage:
        if found:
            found[int(where * len(found))] ^= change
    return bytes(found)


@patient
@given(st.lists(records, max_size=6), damages, tails, st.sampled_from([0, 2**40]), st.booleans())
def test_both_scans_agree_on_whole_and_on_damaged_bytes(
    found: list[Record], damage: list[tuple[float, int]], tail: bytes, at: int, check_body: bool
) -> None:
    """Given records of every kind, some bytes of them changed, then the fast scan says of each what
    the plain one says, and ends at the same place for the same reason."""
    data = spoiled(placed(found, at), damage) + tail

    rows, used, end = scan(data, at, check_body=check_body, customs=CUSTOMS)
    batch, fast_used, fast_end = columns(
        data, at, LOG_SCHEMA, check_body=check_body, context=CUSTOMS
    )

    assert (fast_used, fast_end) == (used, end)
    assert batch.to_pylist() == log_batch(rows).to_pylist()
    batch.validate(full=True)


@patient
@given(st.lists(records, min_size=1, max_size=4), st.floats(0, 1))
def test_both_scans_agree_on_bytes_that_are_cut_anywhere(found: list[Record], at: float) -> None:
    data = placed(found)
    data = data[: int(at * len(data))]

    rows, used, end = scan(data, 0, check_body=False)
    batch, fast_used, fast_end = columns(data, 0, LOG_SCHEMA, check_body=False)

    assert (fast_used, fast_end) == (used, end)
    assert batch.to_pylist() == log_batch(rows).to_pylist()


def agreed(data: bytes, at: int = 0) -> int:
    """Assert that both scans say the same of some bytes; return how many records these hold."""
    rows, used, end = scan(data, at, check_body=True, customs=CUSTOMS)
    batch, fast_used, fast_end = columns(data, at, LOG_SCHEMA, context=CUSTOMS)

    assert (fast_used, fast_end) == (used, end)
    assert batch.equals(log_batch(rows))
    return len(rows)


def test_both_scans_agree_on_every_pair_of_properties() -> None:
    pairs = [b"\x02".join(pair) for pair in product(PIECES, PIECES)]
    found = [Record(topic="orders", body=b"", properties=text) for text in (*PIECES, *pairs)]

    assert agreed(placed(found)) == len(found)


def test_both_scans_agree_on_every_kind_of_record() -> None:
    kinds = product(sorted(set(TOPICS)), HOSTS, HOSTS, sorted(set(SYS_FLAGS)), LONGS)
    found = [
        Record(
            topic=topic,
            body=BODIES[number % 3],
            properties=PIECES[number % len(PIECES)],
            sys_flag=sys_flag,
            born_host=born,
            store_host=stored,
            store_time_ms=time,
            born_time_ms=time,
        )
        for number, (topic, born, stored, sys_flag, time) in enumerate(kinds)
    ]

    assert agreed(placed(found, 2**40), 2**40) == len(found)


def test_both_scans_agree_wherever_one_byte_is_wrong() -> None:
    """Given three records, the second with a wrong byte, then both end at the same place, for every
    byte of it, or read the same."""
    properties = PIECES[0] + b"\x02TAGS\x01paid\x02"
    data = placed([Record(topic="orders", body=b"paid", properties=properties)] * 3)
    size = len(data) // 3
    found = set()

    for at in range(size, 2 * size):
        spoilt = bytearray(data)
        spoilt[at] ^= 0x80 if at % 2 else 0x01
        found.add(agreed(bytes(spoilt)))

    assert found == {1, 3}


@few
@given(st.lists(records, min_size=1, max_size=5))
def test_bodies_and_properties_are_given_as_they_are_stored(found: list[Record]) -> None:
    data = placed(found)

    schema = columns_of(["body", "size", "properties"], RECORD_SCHEMA)
    rows = columns(data, 0, schema)[0].to_pylist()

    stored = [decode_record(data, sum(row["size"] for row in rows[:at])) for at in range(len(rows))]
    assert [row["body"] for row in rows] == [record.body for record in found]
    assert [row["properties"] for row in rows] == [record.properties for record in stored]


@few
@given(st.lists(records, max_size=5), st.sets(st.sampled_from(RECORD_SCHEMA.names), min_size=1))
def test_a_column_is_the_same_whatever_else_is_asked_for(
    found: list[Record], names: set[str]
) -> None:
    data = placed(found)

    everything = columns(data, 0, RECORD_SCHEMA)[0]
    some = columns(data, 0, columns_of(sorted(names), RECORD_SCHEMA))[0]

    assert some.schema.names == sorted(names)
    for name in names:
        assert some.column(name).to_pylist() == everything.column(name).to_pylist()


def test_records_of_a_pull_are_believed_about_where_they_lie() -> None:
    """Given records that do not follow one another in the log, as a pull brings them."""
    pulled = placed([Record(topic="orders", body=b"1")], 500) + placed(
        [Record(topic="orders", body=b"2", store_host=HOSTS[1])], 9000
    )

    batch, used, end = columns(pulled, None, LOG_SCHEMA)

    assert batch.column("commit_log_offset").to_pylist() == [500, 9000]
    assert (used, end) == (len(pulled), ScanEnd.CUT)


def test_no_record_is_an_empty_batch_of_the_wanted_columns() -> None:
    schema = columns_of(["message_id", "store_time"], RECORD_SCHEMA)

    batch, used, end = columns(bytes(100), 0, schema)

    assert (batch.num_rows, batch.schema, used, end) == (0, schema, 0, ScanEnd.INVALID)


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no such column: nonsense; there are role, "):
        columns_of(["size", "nonsense"], RECORD_SCHEMA)


def test_many_records_of_one_producer_take_no_row_of_the_plain_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given first deliveries with an id and a tag, then none of them is read one by one."""
    properties = b"UNIQ_KEY\x01" + message_id(1).encode() + b"\x02TAGS\x01paid\x02"
    data = placed([Record(topic="orders", body=b"1", properties=properties)] * 3)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a usual record went the slow way")

    monkeypatch.setattr("reliable_mq.reconcile.brokers.log_columns.read_row", never)
    monkeypatch.setattr("reliable_mq.reconcile.brokers.log_columns.ledger_id", never)
    batch = columns(data, 0, LOG_SCHEMA)[0]

    assert pa.compute.unique(batch.column("message_id")).to_pylist() == [message_id(1)]
    assert batch.column("tag").to_pylist() == ["paid"] * 3
    assert decode_properties(properties)["TAGS"] == "paid"
