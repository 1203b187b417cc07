"""A SendMessage that is read as bytes says what protobuf's reader says, or is left to it."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.call_body import decode_call
from reliable_mq.gateway.codes import RpcRefused
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sending import Outgoing, read_messages
from reliable_mq.gateway.usual_send import usual_send
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

NUMBER = "0102030405060708090A0B0C0D0E0F1011"
PEER, NOW_MS = "192.0.2.7", 1_790_000_000_123
BORN = {"seconds": 1_790_000_000, "nanos": 7_000_000}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=140)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.fixed_dictionaries({}, optional={"seconds": INT64, "nanos": st.integers(-9, 10**9)})


def body_of(*messages: dict[str, Any], **more: Any) -> bytes:
    data: bytes = TYPES["SendMessageRequest"](messages=messages, **more).SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


def message(topic: str = "orders", body: bytes = b"x" * 1024, **system: Any) -> dict[str, Any]:
    usual = {"message_id": NUMBER, "body_encoding": 1, "message_type": 1, "born_timestamp": BORN}
    usual |= {"born_host": "shop", **system}
    return {"topic": {"name": topic}, "system_properties": usual, "body": body}


def read(body: bytes) -> Outgoing | None:
    """Return what is read as bytes; None: nothing, or it is refused."""
    with contextlib.suppress(ReliableMQError):
        return usual_send(body, PEER)
    return None


def in_general(body: bytes) -> Outgoing:
    """Return what protobuf's reader makes of a body."""
    return read_messages(decode_call("SendMessage", body).messages, PEER, NOW_MS)


def agrees(outgoing: Outgoing, body: bytes) -> bool:
    """Whether both ways say the same."""
    other = in_general(body)
    shown = (list(each) for each in (outgoing.items, other.items))
    ids = (list(each) for each in (outgoing.message_ids, other.message_ids))
    return (
        len({outgoing[:5], other[:5]}) == 1
        and next(shown) == next(shown)
        and next(ids) == next(ids)
    )


@pytest.mark.parametrize("size", [1, 100, 127, 128, 1024, 16_000, 17_000, 3_000_000])
@pytest.mark.parametrize(
    "system", [{}, {"born_host": ""}, {"queue_id": 7}, {"body_encoding": 2}, {"message_id": "a1"}]
)
def test_what_clients_write_is_read_as_bytes(size: int, system: dict[str, Any]) -> None:
    body = body_of(message(body=b"x" * size, **system))
    outgoing = usual_send(body, PEER)
    assert outgoing is not None
    assert agrees(outgoing, body)


@given(
    TEXTS,
    st.fixed_dictionaries(
        {},
        optional={
            "message_id": TEXTS,
            "body_encoding": st.integers(0, 300),
            "message_type": st.integers(0, 300),
            "born_timestamp": TIMES,
            "born_host": TEXTS,
            "queue_id": st.integers(-1, 300),
        },
    ),
)
def test_any_call_is_read_as_protobuf_reads_it_or_left(topic: str, system: dict[str, Any]) -> None:
    body = body_of(message(topic, **system))
    outgoing = read(body)
    assert outgoing is None or agrees(outgoing, body)


@given(st.data())
def test_spoilt_bytes_are_read_as_protobuf_reads_them_or_left(data: st.DataObject) -> None:
    body = bytearray(body_of(message(body=b"hello", queue_id=3)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    spoilt = bytes(body)
    if data.draw(st.booleans()):
        spoilt = bytes(body[: data.draw(st.integers(0, len(body)))])
    outgoing = read(spoilt)
    assert outgoing is None or agrees(outgoing, spoilt)


@pytest.mark.parametrize(
    "body",
    [
        body_of(),
        body_of(message(), message()),
        body_of({**message(), "user_properties": {"a": "b"}}),
        body_of(message(body=b"")),
        body_of(message(body=b"x" * (MESSAGE_BODY_SIZE_MAX + 1))),
        body_of(message(message_id="")),
        body_of(message(message_id="a b")),
        body_of(message(message_id="ä1")),
        body_of(message(tag="t")),
        body_of(message(keys=["k"])),
        body_of(message(message_type=4)),
        body_of(message(message_group="g")),
        body_of(message(delivery_timestamp=BORN)),
        body_of(message(trace_context="t")),
        body_of(message(delivery_attempt=2)),
        body_of(message(body_digest={"type": 1, "checksum": "1"})),
        body_of(message("t" * 128)),
        body_of(message()) + b"\x1a\x00",
        b"\x01" + body_of(message())[1:],
    ],
)
def test_other_forms_are_left(body: bytes) -> None:
    assert read(body) is None


def with_more(again: bytes) -> bytes:
    """Return a body with more bytes behind the system properties of its message."""
    kind = TYPES["SystemProperties"]
    whole: bytes = kind(**message()["system_properties"]).SerializeToString() + again
    data = b"\x0a\x08\x12\x06orders" + b"\x1a" + bytes([len(whole)]) + whole + b"\x22\x01x"
    data = b"\x0a" + bytes([len(data)]) + data
    return b"\0" + len(data).to_bytes(4) + data


def test_a_field_that_comes_twice_is_left() -> None:
    """The second one counts for protobuf's reader."""
    kind = TYPES["SystemProperties"]
    again = kind(message_id="OTHER", born_timestamp={"seconds": 1}).SerializeToString()
    body = with_more(again)
    assert in_general(body).message_ids == ["OTHER"]
    assert read(body) is None


def test_an_id_that_comes_again_without_characters_is_left() -> None:
    body = with_more(b"\x1a\x00")
    with pytest.raises(RpcRefused, match="message id"):
        in_general(body)
    assert read(body) is None


def test_a_topic_that_no_client_may_use_is_refused() -> None:
    for topic in ("rmq_sys_x", "a b"):
        with pytest.raises(RpcRefused):
            usual_send(body_of(message(topic)), PEER)


def test_the_host_of_the_peer_stands_for_one_that_is_not_named() -> None:
    body = body_of(message(born_host=""))
    first, second = usual_send(body, "192.0.2.1"), usual_send(body, "192.0.2.2")
    assert first is not None
    assert second is not None
    assert b"__BORNHOST\x01192.0.2.1\x02" in first.items[0].properties
    assert b"__BORNHOST\x01192.0.2.2\x02" in second.items[0].properties
