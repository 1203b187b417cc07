"""The body of a call: it is refused for what it holds before that takes memory or time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.grpc_client import GrpcClient

from reliable_mq.gateway.call_body import (
    CALL_SIZE_MAX,
    ENTRIES_MAX,
    BodyRefused,
    decode_call,
    has_many_fields,
    says_too_much,
    size_max_of,
)
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.field_bytes import varint
from reliable_mq.gateway.message_types import TYPES, DecodeError
from reliable_mq.limits import FILTER_LENGTH_MAX


def body_of(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4) + data


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("AckMessage", b"\x1a\0" * 20_000),
        ("SendMessage", b"\x0a\0" * 2_000_000),
        ("AckMessage", b"\x0b\x0c" * 20_000),
        ("AckMessage", b"\x0b\x0c" + b"\x1a\0" * 20_000),
        ("AckMessage", b"\x08\x01" * 20_000),
    ],
)
def test_more_entries_than_a_call_may_have_are_not_decoded(name: str, data: bytes) -> None:
    with pytest.raises(RpcRefused, match="at most 1024 messages or entries") as caught:
        decode_call(name, body_of(data))
    assert caught.value.code == Code.BAD_REQUEST


def test_as_many_entries_as_allowed_are_taken() -> None:
    entries = [{"message_id": "id", "receipt_handle": "h" * 200}] * ENTRIES_MAX
    call = TYPES["AckMessageRequest"](
        group={"name": "g"}, topic={"name": "orders"}, entries=entries
    )
    data = call.SerializeToString()
    assert len(data) < CALL_SIZE_MAX
    assert decode_call("AckMessage", body_of(data)) == call


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def long_message(about: bytes) -> bytes:
    """Return a SendMessage of one message with these fields and a long body."""
    return body_of(field(1, about + field(4, b"x" * 600_000)))


@pytest.mark.parametrize(
    "about",
    [
        b"\x12\x00" * 40_000,  # empty properties
        b"".join(field(2, field(1, b"%06d" % number)) for number in range(40_000)),
        field(3, b"\x12\x00" * 600_000),  # keys
        field(1, b"\x12\x00" * 600_000),  # names of its topic
    ],
)
def test_a_message_that_has_more_fields_than_any_is_not_decoded(about: bytes) -> None:
    """To decode 4 MiB of them took a tenth of a second, in which nobody else was served."""
    with pytest.raises(RpcRefused, match="besides their bodies") as caught:
        decode_call("SendMessage", long_message(about))
    assert caught.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE


def test_messages_with_as_much_as_they_may_say_are_taken() -> None:
    properties = {f"name-{number}": "v" * 100 for number in range(128)}
    system = {"tag": "t", "keys": ["k" * 20] * 20, "message_id": "01" * 17}
    one = {"topic": {"name": "orders"}, "user_properties": properties, "system_properties": system}
    large = TYPES["SendMessageRequest"](messages=[{**one, "body": b"x" * 1_000_000}] * 4)
    small = {**one, "user_properties": {"a": "b" * 200}, "body": b"x" * 200}
    many = TYPES["SendMessageRequest"](messages=[small] * ENTRIES_MAX)
    for call in (large, many):
        data = call.SerializeToString()
        assert len(data) > 400_000
        assert decode_call("SendMessage", body_of(data)) == call


@given(st.binary(max_size=200))
def test_any_bytes_say_too_much_or_not(data: bytes) -> None:
    assert not says_too_much(data, 0)


def test_only_calls_with_a_filter_or_many_entries_may_be_long() -> None:
    assert size_max_of("QueryRoute") < size_max_of("AckMessage") < size_max_of("SendMessage")
    assert size_max_of("ReceiveMessage") > 4 * FILTER_LENGTH_MAX


@given(st.binary(max_size=200))
def test_fields_of_any_bytes_are_counted_or_the_bytes_are_no_call(data: bytes) -> None:
    many = has_many_fields(data, 0, 3)
    try:
        call = decode_call("AckMessage", body_of(data))
    except (BodyRefused, DecodeError):
        return
    assert many or len(call.entries) <= 3


@pytest.mark.processes
def test_a_call_with_too_many_entries_or_bytes_is_told_so(client: GrpcClient) -> None:
    names: dict[str, Any] = {"group": {"name": "g"}, "topic": {"name": "plain"}}
    answer = client.call("AckMessage", **names, entries=[{}] * 60_000)
    assert answer.status.code == Code.BAD_REQUEST
    assert "1024" in answer.status.message
    message = {"topic": {"name": "plain"}, "body": b"x"}
    answer = client.call("SendMessage", messages=[message] * 20_000)
    assert answer.status.code == Code.BAD_REQUEST
    with pytest.raises(Exception, match="QueryRoute has at most"):
        client.call("QueryRoute", topic={"name": "plain", "resource_namespace": "x" * 600_000})
