"""Bytes that stand for objects of protobuf: they decode to what an object would say."""

from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.gateway.field_bytes import field_tags, known_text, sized, timestamp, varint
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import (
    PoppedMessage,
    encode_message,
    kind_of,
    message_of,
    said_by,
    said_in,
)
from reliable_mq.gateway.sending import BORN_HOST, TRACE_CONTEXT
from reliable_mq.wire import properties as p
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.record import Record, pack_host

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
HANDLE = "7 1790000000000 60000 3 0 b 0 7"
OWN = {
    p.UNIQ_KEY: "ID7",
    p.TAGS: "paid",
    p.KEYS: "k1 k2",
    p.SHARDING_KEY: "order-1",
    p.TIMER_DELIVER_MS: "1790000000123",
    TRACE_CONTEXT: "trace",
    BORN_HOST: " shop-1 ",
    "DLQ_ORIGIN_TOPIC": "orders",
    "DLQ_ORIGIN_MESSAGE_ID": "ID6",
    "REAL_TOPIC": "of the broker",
}


# What clients write around unique key and time of birth, and what nobody should write.
PARTS = st.lists(
    st.sampled_from(
        [
            *("WAIT\x01true\x02", "TAGS\x01paid\x02", "KEYS\x01k1 k2\x02", "own\x01é\x02"),
            *("UNIQ_KEY\x01ID7\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01é\x02", "UNIQ_KEY\x02"),
            *("BORN_TIMESTAMP\x011790000000000\x02", "BORN_TIMESTAMP\x01soon\x02"),
            *("BORN_TIMESTAMP\x01\x02", "MY_BORN_TIMESTAMP\x017\x02", "MY_UNIQ_KEY\x01ID8\x02"),
            *(
                "BORN_TIMESTAMP\x017",
                "UNIQ_KEY\x01",
                "\x01",
                "\x02",
                "UNIQ_KEY",
                "x",
                "__SHARDINGKEY\x01o\x02",
            ),
        ]
    ),
    max_size=8,
).map("".join)


def filled(record: Record, found: dict[str, str], attempts: int, topic: str, handle: str) -> Any:
    """Return the message as an object that is filled field by field."""
    message = TYPES["Message"](body=record.body)
    message.topic.name = topic
    system = message.system_properties
    for name in found.keys() - OWN.keys():
        message.user_properties[name] = found[name]
    system.message_id = found.get(p.UNIQ_KEY) or record.offset_message_id()
    system.body_digest.type = 2
    system.body_digest.checksum = md5(record.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding, system.message_type = 1, kind_of(found)
    for field, ms in (
        (system.born_timestamp, record.born_time_ms),
        (system.store_timestamp, record.store_time_ms),
    ):
        shown = min(max(ms, 0), 253_402_300_799_999)
        field.seconds, field.nanos = shown // 1000, shown % 1000 * 1_000_000
    system.born_host = "shop-1" if BORN_HOST in found else "10.0.0.1"
    system.store_host = "[::1]:10911"
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    system.delivery_attempt = min(attempts + 1, 2**31 - 1)
    if handle:
        system.receipt_handle = handle
    if p.TAGS in found:
        system.tag = found[p.TAGS]
        system.keys.extend(found[p.KEYS].split(" "))
        system.message_group = found[p.SHARDING_KEY]
        system.delivery_timestamp.seconds = 1_790_000_000
        system.delivery_timestamp.nanos = 123_000_000
        system.trace_context = "trace"
        system.dead_letter_queue.topic = "orders"
        system.dead_letter_queue.message_id = "ID6"
    return message


@given(
    body=st.binary(max_size=3000),
    user=st.dictionaries(st.text("abcé", min_size=1, max_size=20), TEXTS, max_size=5),
    is_rich=st.booleans(),
    numbers=st.tuples(I32, I64, I64, I64, st.integers(0, 2**31 - 1)),
    topic=st.text("topic%-_", min_size=1, max_size=255),
    is_popped=st.booleans(),
)
def test_a_record_as_bytes_says_what_an_object_would_say(
    body: bytes,
    user: dict[str, str],
    is_rich: bool,
    numbers: tuple[int, int, int, int, int],
    topic: str,
    is_popped: bool,
) -> None:
    queue_id, queue_offset, born_ms, store_ms, attempts = numbers
    record = Record(
        topic,
        body,
        queue_id=queue_id,
        queue_offset=queue_offset,
        born_time_ms=born_ms,
        born_host=pack_host("10.0.0.1", 1234),
        store_time_ms=store_ms,
        store_host=pack_host("::1", 10911),
    )
    found = user | OWN if is_rich else user
    if is_popped:
        popped = PoppedMessage(record, found.get(p.UNIQ_KEY, ""), said_by(found), HANDLE, attempts)
        message = TYPES["Message"].FromString(encode_message(popped, topic))
    else:
        message = message_of(record, found, attempts)
    assert message == filled(record, found, attempts, topic, f"{HANDLE} 0" if is_popped else "")


@given(PARTS.map(str.encode) | st.binary(max_size=60), st.integers(0, 40))
def test_properties_that_are_read_once_say_what_they_say_alone(data: bytes, cut: int) -> None:
    for stored in (data, b"UNIQ_KEY\x01A17\x02" + data, b"UNIQ_KEY\x01A17\x02" + data[cut:]):
        found = decode_properties(stored)
        assert said_in(stored) == (found.get(p.UNIQ_KEY, ""), said_by(found))


def test_messages_that_differ_in_key_and_time_of_birth_share_what_they_say() -> None:
    stored = b"UNIQ_KEY\x01%d\x02own\x01x\x02BORN_TIMESTAMP\x01%d\x02WAIT\x01true\x02"
    (first, said), (second, again) = (said_in(stored % (n, 1_790_000_000_000 + n)) for n in (1, 2))
    assert (first, second) == ("1", "2")
    assert said is again


def test_long_properties_are_not_kept() -> None:
    stored = b"UNIQ_KEY\x011\x02own\x01" + b"x" * 600 + b"\x02"
    assert said_in(stored)[1] is not said_in(stored)[1]


@given(I64)
def test_a_number_is_what_protobuf_writes(number: int) -> None:
    message = TYPES["SendResultEntry"].FromString(
        field_tags("SendResultEntry")["offset"] + varint(number)
    )
    assert message.offset == number


@pytest.mark.parametrize("ms", [0, 1, 999, 1000, 1_790_000_000_123, -5, 2**63])
def test_a_time_is_within_what_protobuf_has(ms: int) -> None:
    data = timestamp(field_tags("SystemProperties")["born_timestamp"], ms)
    found = TYPES["SystemProperties"].FromString(data).born_timestamp
    assert found.seconds * 1000 + found.nanos // 1_000_000 == min(max(ms, 0), 253_402_300_799_999)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 255, 256, 1023, 1024, 20_000])
def test_a_text_of_any_length_is_a_field(length: int) -> None:
    text, tag = "ü" * length, field_tags("Status")["message"]
    for data in (known_text(tag, b"", text), sized(tag, text.encode())):
        assert TYPES["Status"].FromString(data).message == text
    inner = field_tags("Resource")["name"]
    message = TYPES["Message"].FromString(known_text(field_tags("Message")["topic"], inner, text))
    assert message.topic.name == text
