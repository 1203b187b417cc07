"""Records of one queue, encoded together, are what each is by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import HOST, I32, I64, TOPIC

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.batch_body import BatchItem, decode_batch, encode_batch
from reliable_mq.wire.record import RECORD_SIZE_MIN, Record, record_size_at
from reliable_mq.wire.record_encode import encode_record, topic_part
from reliable_mq.wire.record_run import RecordRun
from reliable_mq.wire.record_scan import claimed_size_at, is_of_newer_version

MESSAGE = st.tuples(I32, st.binary(max_size=60), st.binary(max_size=60))


@given(TOPIC, I32, st.tuples(HOST, HOST), st.lists(MESSAGE, min_size=1, max_size=4), I64)
def test_a_run_of_records_is_what_each_is_by_itself(
    topic: str,
    queue_id: int,
    hosts: tuple[bytes, bytes],
    messages: list[tuple[int, bytes, bytes]],
    born_ms: int,
) -> None:
    single = [
        encode_record(
            Record(
                topic=topic,
                body=body,
                properties=properties,
                queue_id=queue_id,
                flag=flag,
                queue_offset=70 + number,
                commit_log_offset=1000 * number,
                sys_flag=1,
                born_time_ms=born_ms,
                born_host=hosts[0],
                store_time_ms=5,
                store_host=hosts[1],
                reconsume_times=3,
            )
        )
        for number, (flag, body, properties) in enumerate(messages)
    ]
    magic, named = topic_part(topic.encode())
    run = RecordRun(magic, named, queue_id, 1, born_ms, hosts[0], 5, hosts[1], 3)
    flags, bodies, properties = zip(*messages, strict=True)
    offsets = range(0, 1000 * len(messages), 1000)
    joined = run.encode(map(len, single), offsets, 70, flags, bodies, properties)
    assert joined == b"".join(single)


SMALLEST = encode_record(Record(topic="", body=b""))


def test_the_smallest_record_has_neither_topic_nor_body_nor_properties() -> None:
    assert len(SMALLEST) == RECORD_SIZE_MIN
    view = memoryview(b"??" + SMALLEST)
    assert record_size_at(view, 2) == claimed_size_at(view, 2, 0) == RECORD_SIZE_MIN
    assert record_size_at(view[:-1], 2) == 0
    assert record_size_at(bytes(view), 3) == record_size_at(b"", 0) == 0


def test_too_few_bytes_are_no_record_of_another_version() -> None:
    newer = bytearray(SMALLEST)
    newer[7] = 0xAC
    assert is_of_newer_version(memoryview(b"?" + newer), 1, 0)
    assert not is_of_newer_version(memoryview(b"?" + newer[:-1]), 1, 0)


def test_properties_may_take_all_the_room_that_a_record_has() -> None:
    items = [BatchItem(0, b"", bytes(PROPERTIES_SIZE_MAX))]
    assert PROPERTIES_SIZE_MAX == 32_767
    assert decode_batch(encode_batch(items)) == items
    with pytest.raises(MessageRefused):
        encode_batch([BatchItem(0, b"", bytes(PROPERTIES_SIZE_MAX + 1))])
