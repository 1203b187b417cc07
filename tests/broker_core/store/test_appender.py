"""Appending: the place of each message, and the units of each queue in a batch."""

import pytest
from tests.broker_core.store.store_life import DELAYS_MS, HOST, message

from reliable_mq.broker_core.store.appender import Appender, AppendResult, StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import pack_unit
from reliable_mq.broker_core.store.lanes import Dispatch
from reliable_mq.errors import MessageRefused
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import TAGS, encode_properties
from reliable_mq.wire.record import BLANK_SIZE, TRANSACTION_PREPARED, Record, decode_record

SEGMENT = 4096
NOW = 1_700_000_000_000
BODIES = [b"one", b"twenty-two", b"333"]


@pytest.fixture
def appender() -> Appender:
    return Appender(CommitLog(MemoryDisk(), SEGMENT), HOST, DELAYS_MS)


def taken(appender: Appender) -> tuple[list[Record], Dispatch]:
    """Return the records of the batch, and the dispatch that is due with it."""
    found = appender.take_batch()
    assert found is not None
    batch, dispatch = found
    assert dispatch.end == batch.end
    data = b"".join(part for write in batch.writes for part in write.parts)
    records, at = [], 0
    while at < len(data):
        records.append(decode_record(data, at, check_body=True))
        at += records[-1].size
    return records, dispatch


def append_batch(
    appender: Appender, like: StoredMessage, bodies: list[bytes], now_ms: int = NOW
) -> tuple[AppendResult, list[int]]:
    properties = [encode_properties({TAGS: body.decode()}) for body in bodies]
    return appender.append_batch(like, list(range(len(bodies))), bodies, properties, now_ms)


def test_a_message_gets_the_next_place_of_the_log_and_of_its_queue(appender: Appender) -> None:
    places = [
        appender.append(message("orders", queue_id, b"x"), NOW + number)
        for number, queue_id in enumerate((0, 1, 0))
    ]
    records, dispatch = taken(appender)
    assert [place.queue_offset for place in places] == [0, 0, 1]
    assert [record.queue_offset for record in records] == [0, 0, 1]
    assert [place.commit_log_offset for place in places] == [0, *(p.end for p in places[:-1])]
    assert [record.commit_log_offset for record in records] == [
        place.commit_log_offset for place in places
    ]
    assert [record.store_time_ms for record in records] == [NOW, NOW + 1, NOW + 2]
    assert (records[0].reconsume_times, records[0].prepared_transaction_offset) == (0, 0)
    assert (dispatch.last_record, dispatch.last_time_ms) == (places[2].commit_log_offset, NOW + 2)
    assert dispatch.end == places[2].end


def test_the_units_of_a_queue_are_gathered_in_a_batch(appender: Appender) -> None:
    places = [
        appender.append(message("orders", queue_id, b"x", tag), NOW)
        for queue_id, tag in ((0, "red"), (1, "red"), (0, "blue"))
    ]
    _, dispatch = taken(appender)
    size = places[0].end
    first, other = dispatch.arrivals
    sizes = [place.end - place.commit_log_offset for place in places]
    assert (first.topic, first.queue_id, first.first) == ("orders", 0, 0)
    assert first.units == [
        pack_unit(0, size, tags_code("red")),
        pack_unit(places[2].commit_log_offset, sizes[2], tags_code("blue")),
    ]
    assert first.tags_codes == {tags_code("red"), tags_code("blue")}
    assert (first.last_log_offset, first.log_end) == (places[2].commit_log_offset, places[2].end)
    assert first.size == sizes[0] + sizes[2]
    assert (other.queue_id, other.first, len(other.units), other.size) == (1, 0, 1, sizes[1])
    assert appender.take_batch() is None

    appender.append(message("orders", 0, b"x"), NOW)
    _, later = taken(appender)
    (more,) = later.arrivals
    assert (more.first, len(more.units)) == (2, 1)


def test_time_never_goes_back_in_the_log(appender: Appender) -> None:
    for now_ms in (NOW, NOW - 5, NOW + 1):
        appender.append(message("orders", 0, b"x"), now_ms)
    append_batch(appender, message("orders", 0, b""), BODIES, NOW - 9)
    append_batch(appender, message("orders", 0, b""), BODIES, NOW + 9)
    records, dispatch = taken(appender)
    assert [record.store_time_ms - NOW for record in records] == [0, 0, 1, 1, 1, 1, 9, 9, 9]
    assert dispatch.last_time_ms == NOW + 9
    assert appender.last_time_ms == NOW + 9


def test_a_half_message_takes_no_number_of_its_queue(appender: Appender) -> None:
    half = message("orders", 0, b"half")
    half.sys_flag = TRANSACTION_PREPARED
    appender.append(message("orders", 0, b"x"), NOW)
    assert appender.append(half, NOW).queue_offset == 0
    assert appender.append(message("orders", 0, b"y"), NOW).queue_offset == 1
    records, dispatch = taken(appender)
    assert [record.queue_offset for record in records] == [0, 0, 1]
    assert [len(each.units) for each in dispatch.arrivals] == [2]

    end = appender.append(half, NOW)
    _, dispatch = taken(appender)
    assert (dispatch.arrivals, dispatch.last_record) == ([], end.commit_log_offset)


def test_messages_of_a_batch_lie_side_by_side_with_successive_numbers(appender: Appender) -> None:
    appender.append(message("orders", 3, b"before"), NOW)
    place, offsets = append_batch(appender, message("orders", 3, b""), BODIES)
    records, dispatch = taken(appender)
    stored = records[1:]
    assert [record.body for record in stored] == BODIES
    assert [record.flag for record in stored] == [0, 1, 2]
    assert [record.commit_log_offset for record in stored] == offsets
    assert [record.queue_offset for record in stored] == [1, 2, 3]
    assert (place.commit_log_offset, place.queue_offset) == (offsets[0], 1)
    assert place.end == offsets[2] + stored[2].size == dispatch.end
    assert dispatch.last_record == offsets[2]
    (arrivals,) = dispatch.arrivals
    codes = [tags_code("paid"), *(tags_code(body.decode()) for body in BODIES)]
    assert arrivals.units == [
        pack_unit(record.commit_log_offset, record.size, code)
        for record, code in zip(records, codes, strict=True)
    ]
    assert (arrivals.first, arrivals.tags_codes) == (0, set(codes))
    assert (arrivals.last_log_offset, arrivals.log_end) == (offsets[2], place.end)
    assert arrivals.size == sum(record.size for record in records)
    assert appender.append(message("orders", 3, b"after"), NOW).queue_offset == 4


def test_a_batch_may_be_the_first_of_its_queue(appender: Appender) -> None:
    place, offsets = append_batch(appender, message("orders", 0, b""), BODIES[:1])
    _, dispatch = taken(appender)
    (arrivals,) = dispatch.arrivals
    assert (place.queue_offset, offsets) == (0, [0])
    assert (arrivals.first, arrivals.last_log_offset, arrivals.size) == (0, 0, place.end)


def test_a_batch_must_fit_a_file_of_the_log_with_a_blank(appender: Appender) -> None:
    like = message("orders", 0, b"")
    size = append_batch(appender, like, [b"a"])[0].end
    taken(appender)
    longest = b"a" * (SEGMENT - BLANK_SIZE - size + 1)
    properties = [encode_properties({TAGS: "a"})]
    for body, is_refused in ((longest + b"a", True), (longest, False)):
        if is_refused:
            with pytest.raises(MessageRefused, match="a file of the log holds 4096"):
                appender.append_batch(like, [0], [body], properties, NOW)
            assert appender.take_batch() is None
        else:
            place, _ = appender.append_batch(like, [0], [body], properties, NOW)
            assert (place.commit_log_offset, place.queue_offset) == (SEGMENT, 1)


def test_the_units_of_a_forgotten_topic_are_dropped_and_its_numbers_go_on(
    appender: Appender,
) -> None:
    for topic in ("orders", "others"):
        appender.append(message(topic, 0, b"x"), NOW)
    appender.lane("orders", 1)
    (lane,) = appender.forget("orders")
    assert (lane.topic, lane.queue_id, lane.next) == ("orders", 0, 1)
    assert appender.append(message("orders", 0, b"y"), NOW).queue_offset == 1
    _, dispatch = taken(appender)
    units = {each.topic: (each.first, len(each.units)) for each in dispatch.arrivals}
    assert units == {"orders": (1, 1), "others": (0, 1)}
    assert appender.forget("nobody") == []
