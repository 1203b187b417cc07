"""Looking over records without decoding them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import RECORD

from reliable_mq.wire.record import (
    MAGIC_V1,
    RECORD_SIZE_MIN,
    Record,
    are_messages,
    holds_records_of,
    is_message,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_scan import (
    MAGIC_PLACE,
    are_valid,
    claimed_size_at,
    head_at,
    heads_from,
    holds_records,
    is_of_newer_version,
    is_record_size,
    rows_of,
    valid_size_at,
)

RECORDS = st.lists(RECORD, min_size=1, max_size=5) | st.builds(
    lambda record, count: [record] * count, RECORD, st.integers(1, 20)
)


@given(RECORDS, st.data())
def test_records_are_where_their_sizes_say_and_damage_of_any_is_seen(
    records: list[Record], data: st.DataObject
) -> None:
    parts = [encode_record(record) for record in records]
    buffer, sizes = b"".join(parts), tuple(map(len, parts))
    assert holds_records_of(buffer, sizes)
    assert holds_records(buffer, len(sizes))

    begin = sum(sizes[: data.draw(st.integers(0, len(sizes) - 1))])
    at = begin + data.draw(st.integers(0, 7))  # in a size or a magic
    flip = data.draw(st.sampled_from([1, 2, 16, 128, 255]))
    spoiled = buffer[:at] + bytes([buffer[at] ^ flip]) + buffer[at + 1 :]
    assert not holds_records_of(spoiled, sizes)


@pytest.mark.parametrize("sizes", [(RECORD_SIZE_MIN - 1,), (0,), (-1, 1), (200,), (100, 100)])
def test_sizes_that_no_records_have_are_refused(sizes: tuple[int, ...]) -> None:
    assert not holds_records_of(bytes(max(0, sum(sizes))), sizes)
    assert not holds_records_of(b"", sizes)


def plain(**values: Any) -> Record:
    known: dict[str, Any] = {"topic": "t", "body": b"body", "properties": b"KEYS\1k\2"}
    return Record(**(known | {"commit_log_offset": 1000} | values))


IPV6 = pack_host("::1", 9)
FORMS = [
    plain(),
    plain(topic=""),
    plain(topic="é" * 100),  # of the second version
    plain(body=b"", properties=b""),
    plain(born_host=IPV6),
    plain(topic="", born_host=IPV6),
    plain(store_host=IPV6),
    plain(born_host=IPV6, store_host=IPV6),
]


@pytest.mark.parametrize("record", FORMS)
def test_a_record_is_valid_at_its_place_and_only_whole(record: Record) -> None:
    stored = encode_record(record)
    view = memoryview(b"before" + stored + b"behind")
    assert valid_size_at(view, 6, 1000) == len(stored)
    assert claimed_size_at(view, 6, 1000) == len(stored)
    assert claimed_size_at(view[:42], 6, 1000) == len(stored)
    assert claimed_size_at(view[:41], 6, 1000) == 0
    for offset in (0, 999, 1001, 1000 + 2**32):
        assert valid_size_at(view, 6, offset) == claimed_size_at(view, 6, offset) == 0
    whole = memoryview(stored)
    assert valid_size_at(whole, 0, 1000) == len(stored)
    for size in range(len(stored)):
        assert valid_size_at(whole[:size], 0, 1000) == 0


@pytest.mark.parametrize("record", FORMS)
def test_a_changed_length_or_body_makes_a_record_invalid(record: Record) -> None:
    stored = encode_record(record)
    topic_bytes = len(record.topic.encode())
    lengths = len(stored) - len(record.properties) - 2
    topic_length_at = lengths - topic_bytes - (2 if topic_bytes > 127 else 1)
    body_at = topic_length_at - len(record.body)
    places = [*range(8), *range(body_at - 4, lengths - topic_bytes), lengths, lengths + 1]
    for at in places:
        for flip in (1, 2, 128, 255):
            spoiled = bytearray(stored)
            spoiled[at] ^= flip
            assert valid_size_at(memoryview(spoiled), 0, 1000) == 0, (at, flip)


@pytest.mark.parametrize("topic", ["a\0b", "\0"])
@pytest.mark.parametrize("host", [bytes(8), IPV6])
def test_a_topic_with_a_zero_is_what_a_torn_write_leaves(topic: str, host: bytes) -> None:
    stored = encode_record(plain(topic=topic, born_host=host))
    assert valid_size_at(memoryview(stored), 0, 1000) == 0


def test_several_records_are_valid_one_after_another() -> None:
    parts = [encode_record(plain(commit_log_offset=at)) for at in (10, 500)]
    sizes = [len(part) for part in parts]
    assert are_valid(b"".join(parts), [10, 500], sizes)
    assert are_valid(b"".join(parts), [10], sizes[:1])
    assert not are_valid(b"".join(parts), [10, 501], sizes)
    assert not are_valid(b"".join(parts), [11, 500], sizes)
    assert not are_valid(b"".join(parts)[:-1], [10, 500], sizes)
    assert not are_valid(b"".join(parts), [10, 500], [sizes[0], sizes[1] - 1])


@pytest.mark.parametrize("queue_id", [0, 7, 2**31 - 1])
@pytest.mark.parametrize("number", [0, 1, 2**40])
def test_a_record_says_which_message_of_which_queue_it_is(queue_id: int, number: int) -> None:
    stored = encode_record(plain(queue_id=queue_id, queue_offset=number))
    assert is_message(stored, queue_id, number)
    assert not is_message(stored, queue_id, number + 1)
    assert not is_message(stored, queue_id - 1 if queue_id else 1, number)


def test_records_say_that_they_are_the_messages_of_a_queue_from_a_number_on() -> None:
    parts = [encode_record(plain(queue_id=3, queue_offset=number)) for number in (7, 8, 9)]
    stored, sizes = b"".join(parts), tuple(map(len, parts))
    assert are_messages(stored, sizes, 3, 7)
    assert not are_messages(stored, sizes, 3, 8)
    assert not are_messages(stored, sizes, 4, 7)
    assert not are_messages(stored, sizes[:2], 3, 7)
    assert not are_messages(parts[0] + parts[2], sizes[:2], 3, 7)
    other = encode_record(plain(queue_id=4, queue_offset=8))
    assert not are_messages(parts[0] + other, sizes[:2], 3, 7)
    assert not are_messages(other + parts[0], sizes[:2], 3, 7)


def test_a_record_may_be_as_small_as_one_of_nothing_and_as_large_as_a_frame() -> None:
    assert not is_record_size(RECORD_SIZE_MIN - 1)
    assert is_record_size(RECORD_SIZE_MIN)
    assert is_record_size(2**24)
    assert not is_record_size(2**24 + 1)


def of_version(last_byte: int, offset: int = 1000) -> memoryview:
    stored = bytearray(encode_record(plain(commit_log_offset=offset)))
    stored[MAGIC_PLACE:8] = (MAGIC_V1 & ~0xFF | last_byte).to_bytes(4)
    return memoryview(stored)


def test_a_record_of_a_version_to_come_has_a_magic_of_the_family_and_its_own_place() -> None:
    assert is_of_newer_version(of_version(0xAC), 0, 1000)
    assert is_of_newer_version(of_version(0x01), 0, 1000)
    for known in (0xA7, 0xAB, 0x00):
        assert not is_of_newer_version(of_version(known), 0, 1000)
    assert not is_of_newer_version(of_version(0xAC), 0, 1001)
    assert not is_of_newer_version(of_version(0xAC)[: RECORD_SIZE_MIN - 1], 0, 1000)


@pytest.mark.parametrize("at", [MAGIC_PLACE, MAGIC_PLACE + 1, MAGIC_PLACE + 2])
def test_another_family_of_magics_is_no_record(at: int) -> None:
    for flip in (1, 128):
        spoiled = bytearray(of_version(0xAC))
        spoiled[at] ^= flip
        assert not is_of_newer_version(memoryview(spoiled), 0, 1000)


@given(RECORDS, st.data())
def test_heads_end_where_the_first_record_is_not_whole_or_not_valid(
    records: list[Record], data: st.DataObject
) -> None:
    """One loop for many records finds what a look at each one finds, whatever byte is wrong."""
    offset = data.draw(st.integers(0, 1 << 40))
    parts: list[bytes] = []
    for record in records:
        record.commit_log_offset = offset + sum(map(len, parts))
        parts.append(encode_record(record))
    whole = bytearray(b"before" + b"".join(parts))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(6, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    buffer = bytes(whole[: data.draw(st.integers(6, len(whole)))])

    view, at, end = memoryview(buffer), 6, 6
    while True:
        heads, end = heads_from(buffer, end, offset + end - 6)
        for head in rows_of(heads):
            size = valid_size_at(view, at, offset + at - 6)
            assert head == (size, *head_at(view, at))
            at += size
        assert end == at
        if not heads:
            break
    assert valid_size_at(view, at, offset + at - 6) == 0


def test_a_topic_of_a_negative_length_is_no_record_whether_alone_or_among_alike_ones() -> None:
    topic = "t" * 200
    one = bytearray(encode_record(Record(topic, b"b", b"", store_time_ms=1)))
    length_at = one.index(topic.encode()) - 2
    longer = topic.encode() + bytes(0x8000 - len(topic))
    forged = one[:length_at] + (0x8000).to_bytes(2) + longer.replace(b"\0", b"t") + b"\0\0"
    forged[:4] = len(forged).to_bytes(4)
    whole = bytearray()
    for _ in range(8):
        forged[28:36] = len(whole).to_bytes(8)
        whole += forged
    assert valid_size_at(memoryview(whole), 0, 0) == 0
    heads, end = heads_from(bytes(whole), 0, 0)
    assert not heads
    assert end == 0
