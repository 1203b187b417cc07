"""What brokers note about popped messages, and the handles of consumers: Apache's own bytes."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from reliable_mq.errors import RecordError
from reliable_mq.wire.pop_handle import (
    HandleInvalid,
    PopHandle,
    _parse,
    kind_of,
    parse_checkpoint,
    parse_handle,
)
from reliable_mq.wire.pop_records import (
    NO_POP,
    CheckpointKey,
    PopAcks,
    PopCheckpoint,
    bits_of,
    decode_acks,
    decode_checkpoint,
    encode_acks,
    encode_checkpoint,
)
from reliable_mq.wire.popped_record import with_handle, without_pop_properties
from reliable_mq.wire.record import decode_record, pack_host
from reliable_mq.wire.record_encode import encode_stored, record_size, topic_part

# Written by Apache RocketMQ 5.4.0.
CHECKPOINT = (
    b'{"bm":0,"bn":"b","c":"payments","d":[0,1,4],"it":40000,"n":3,"pt":1795911714037,"q":0,'
    b'"reviveTime":1795911754037,"ro":0,"so":7,"t":"orders"}'
)
ACK = b'{"ao":8,"bn":"b","c":"payments","pt":1795911714037,"q":0,"so":7,"t":"orders"}'
KEY = CheckpointKey("orders", "payments", 0, 7, 1795911714037, "b")
HOST = pack_host("10.0.0.1", 1)


def test_a_checkpoint_has_apaches_bytes() -> None:
    checkpoint = PopCheckpoint(KEY, 40_000, (7, 8, 11))

    assert encode_checkpoint(checkpoint) == CHECKPOINT
    assert decode_checkpoint(CHECKPOINT) == checkpoint
    assert checkpoint.revive_ms == 1795911754037
    assert checkpoint.name == "orders@0@7@payments@1795911714037@b@ck"


@pytest.mark.parametrize("next_offset", [12, NO_POP])
def test_a_checkpoint_of_ours_says_where_the_group_goes_on(next_offset: int) -> None:
    checkpoint = PopCheckpoint(KEY, 40_000, (7, 8, 11), next_offset=next_offset)

    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert decode_checkpoint(CHECKPOINT).next_offset is None


def test_an_acknowledgement_has_apaches_bytes() -> None:
    acks = PopAcks(KEY, (8,))

    assert encode_acks(acks) == ACK
    assert decode_acks(ACK, "other") == acks
    assert (acks.tag, acks.name) == ("ack", "orders@0@8@payments@1795911714037@b@ack")


def test_several_acknowledgements_share_a_record() -> None:
    acks = PopAcks(KEY, (7, 11))

    assert acks.tag == "bAck"
    assert decode_acks(encode_acks(acks), "") == acks


def test_old_brokers_named_no_broker_and_no_distances() -> None:
    old = b'{"bm":2,"c":"g","it":1,"n":3,"pt":5,"q":1,"so":4,"t":"t"}'

    checkpoint = decode_checkpoint(old)

    assert (checkpoint.offsets, checkpoint.bits, checkpoint.key.broker) == ((4, 5, 6), 2, "")
    assert decode_acks(b'{"ao":4,"c":"g","pt":5,"q":1,"so":4,"t":"t"}', "b").key.broker == "b"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b"\xff", b'{"t":"t"}', b'{"t":"t","c":"g","n":33}'),
        *(b'{"t":"t","c":"g","n":-1}', b'{"t":"t","c":"g","n":1,"so":-5}'),
        b'{"t":"t","c":"g","n":1,"d":[9223372036854775807],"so":9}',
    ],
)
def test_what_is_no_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError):
        decode_checkpoint(body)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"ao":1}', b'{"ao":1,"q":0,"so":0,"pt":1}'])
def test_what_is_no_acknowledgement_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError):
        decode_acks(body, "b")


def test_bits_are_those_of_the_messages_of_a_checkpoint() -> None:
    checkpoint = PopCheckpoint(KEY, 1, (7, 8, 11))

    assert bits_of(checkpoint, (11, 7, 7, 9)) == 0b101
    for offset in range(5, 13):
        assert bits_of(checkpoint, (offset,)) == bits_of(checkpoint, (offset, offset))


def test_a_handle_is_what_it_was() -> None:
    handle = PopHandle(0, 1, 2, 3, "1", "b", 4, 5)

    assert handle.text() == "0 1 2 3 1 b 4 5"
    assert parse_handle(handle.text()) == handle
    assert parse_handle("0 1 2 3 1 b 4").offset is None
    assert parse_handle("0 1 2 3 1 b 4 5 999").offset == 5  # a proxy adds the log offset


@pytest.mark.parametrize(
    "text", ["", "1 2", "a 1 2 3 0 b 0", "0 1 2 3 0 b x", f"{2**64} 1 2 3 0 b 0"]
)
def test_what_is_no_handle_is_refused_with_advice(text: str) -> None:
    with pytest.raises(HandleInvalid, match="pop the message again"):
        parse_handle(text)


@pytest.mark.parametrize("end", ["", " 5", " 5 999", " 5 999 1", " -5", " " + "9" * 19, " x"])
@pytest.mark.parametrize(
    "head", ["0 1 2 3 1 b 4", "7 1 2 999 0 a-b 4", "0 1 2 3 1 b", "0 x 2 3 1 b 4"]
)
def test_what_a_handle_says_of_its_checkpoint_is_the_same_without_its_offset(
    head: str, end: str
) -> None:
    def said(parse: Callable[[str], PopHandle]) -> PopHandle | None:
        with suppress(HandleInvalid):
            return parse(head + end)._replace(offset=None)
        return None

    assert said(parse_checkpoint) == said(parse_handle) == said(_parse)


def test_topics_have_kinds() -> None:
    assert [kind_of(name) for name in ("t", "%RETRY%g_t", "%RETRY%g+t")] == ["0", "1", "2"]


def record(topic: str, properties: bytes) -> bytes:
    magic, part = topic_part(topic.encode())
    size = record_size(part, b"body", properties, HOST, HOST)
    return encode_stored(
        *(magic, part, size, b"body", properties, 3, 1, 9, 77, 0, 5, HOST, 6, HOST, 2, 0)
    )


@pytest.mark.parametrize("topic", ["t", "x" * 127, "x" * 128])
@pytest.mark.parametrize("properties", [b"", b"A\x01b\x02", b"A\x01b"])
def test_a_record_of_a_retry_topic_is_given_as_one_of_its_topic(
    topic: str, properties: bytes
) -> None:
    given = decode_record(with_handle(record("%RETRY%g_t", properties), topic, "0 1 2"))

    assert (given.topic, given.body, given.queue_offset) == (topic, b"body", 9)
    assert (given.commit_log_offset, given.reconsume_times, given.queue_id) == (77, 2, 3)
    assert given.property_map()["POP_CK"] == "0 1 2"
    assert given.property_map().get("A", "") == ("b" if properties else "")


@pytest.mark.parametrize("properties", [b"POP_CK\x01x\x02", b"A\x01b\x02POP_CK\x01x"])
def test_a_handle_of_an_earlier_pop_is_replaced(properties: bytes) -> None:
    given = decode_record(with_handle(record("%RETRY%g_t", properties), "t", "new"))

    assert given.property_map()["POP_CK"] == "new"
    assert given.properties.count(b"POP_CK") == 1
    assert given.property_map().get("A", "b") == "b"


def test_a_handle_that_is_there_is_replaced() -> None:
    for forged in (b"POP_CK\x01x\x02", b"A\x01b\x02POP_CK\x01x", b"POP_CK\x01x\x02POP_CK\x01y"):
        given = decode_record(with_handle(record("%RETRY%g_t", forged), "t", "new"))
        assert given.property_map()["POP_CK"] == "new"
        assert given.properties.count(b"POP_CK") == 1


def test_without_a_handle_a_record_loses_the_one_that_it_has() -> None:
    stored = record("t", b"A\x01b\x02POP_CK\x01x\x02C\x01d\x02")
    assert decode_record(with_handle(stored, "t", "")).properties == b"A\x01b\x02C\x01d\x02"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"POP_CK\x01x\x02", b""),
        (b"POP_CK\x01x", b""),
        (b"A\x01b\x02POP_CK\x01x", b"A\x01b\x02"),
        (b"POP_CK\x01x\x02POP_CK\x01y\x02A\x01b\x02POP_CK\x01\x02", b"A\x01b\x02"),
        (b"1ST_POP_TIME\x011\x02POP_CK_OFFSET\x019 0\x02A\x01b\x02", b"A\x01b\x02"),
        (b"MY_POP_CK\x01x\x02POP_CKS\x01y\x02A\x01POP_CK\x02", None),
    ],
)
def test_properties_of_popped_messages_are_taken_out_and_no_others(
    given: bytes, kept: bytes | None
) -> None:
    assert without_pop_properties(given) == (given if kept is None else kept)
