"""What a unit holds is taken from the stored fields alone, quickly; here against the slow way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.broker_core.dispatch import is_queued, queue_tags_code
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.errors import RecordError
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import TAGS, decode_properties
from reliable_mq.wire.record import (
    Record,
    decode_record,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_scan import claimed_size_at, head_at, valid_size_at

DELAYS_MS = {1: 1_000, 2: 5_000}
PAIRS = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "XTAGS", "TAG", "KEYS", ""]),
        st.sampled_from(["", "a", "TAGS", "é"]),
    )
)
HOSTS = st.sampled_from([pack_host("10.0.0.1", 1), pack_host("::1", 65_535)])


@given(PAIRS, st.booleans())
def test_the_tag_is_the_one_that_decoding_finds(
    pairs: list[tuple[str, str]], is_ended: bool
) -> None:
    stored = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + "\x02" * is_ended
    expected = tags_code(decode_properties(stored.encode()).get(TAGS, ""))

    assert queue_tags_code("orders", stored.encode(), 5, DELAYS_MS) == expected


@given(st.binary(max_size=30))
def test_properties_that_are_garbage_have_a_tag_too(stored: bytes) -> None:
    expected = tags_code(decode_properties(stored).get(TAGS, ""))

    assert queue_tags_code("orders", stored, 5, DELAYS_MS) == expected


@pytest.mark.parametrize(
    ("level", "due_ms"), [("1", 1_100), ("2", 5_100), ("9", 5_100), ("0", 0), ("x", 0), ("-1", 0)]
)
def test_a_delayed_message_is_due_after_its_store_time(level: str, due_ms: int) -> None:
    properties = f"DELAY\x01{level}\x02".encode()

    assert queue_tags_code(SCHEDULE_TOPIC, properties, 100, DELAYS_MS) == due_ms


def test_half_messages_and_rollbacks_get_no_unit() -> None:
    assert [is_queued(flag) for flag in (0x0, 0x4, 0x8, 0xC, 0x31, 0x35)] == [
        *(True, False, True, False),
        *(True, False),
    ]


RECORDS = st.builds(
    Record,
    topic=st.text(min_size=1, max_size=60).filter(lambda text: "\0" not in text),
    body=st.binary(max_size=60),
    properties=st.binary(max_size=40),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12]),
    store_time_ms=st.integers(0, 2**40),
    born_host=HOSTS,
    store_host=HOSTS,
)


@given(RECORDS, st.integers(0, 2**40), st.binary(max_size=5))
def test_a_scan_sees_what_decoding_sees(record: Record, offset: int, before: bytes) -> None:
    record.commit_log_offset = offset
    buffer = memoryview(before + encode_record(record) + b"\0" * 9)
    decoded = decode_record(buffer, len(before))

    assert valid_size_at(buffer, len(before), offset) == decoded.size
    assert claimed_size_at(buffer, len(before), offset) == decoded.size
    assert valid_size_at(buffer, len(before), offset + 1) == 0
    assert tuple(head_at(buffer, len(before))) == (
        decoded.topic,
        decoded.queue_id,
        decoded.queue_offset,
        decoded.sys_flag,
        decoded.store_time_ms,
        decoded.properties,
    )


@given(RECORDS, st.data())
def test_a_scan_takes_no_record_that_decoding_refuses(record: Record, data: st.DataObject) -> None:
    stored = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(stored)))
    buffer = memoryview(bytes(stored[:cut]))

    size = valid_size_at(buffer, 0, record.commit_log_offset)

    try:
        decoded = decode_record(buffer, check_body=True)
    except RecordError:
        assert size == 0
    else:
        assert size in (0, decoded.size)
