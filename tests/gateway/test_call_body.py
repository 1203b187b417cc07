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
)
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.message_types import TYPES, DecodeError


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
