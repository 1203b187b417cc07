"""An AckMessage that is read as bytes says what protobuf's reader says, or is left to it."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.call_body import decode_call
from reliable_mq.gateway.codes import RpcRefused
from reliable_mq.gateway.handles import read_handle
from reliable_mq.gateway.message_types import TYPES, DecodeError
from reliable_mq.gateway.usual_ack import UsualAck, acknowledged, usual_ack

HANDLE = "7 1790000000000 60000 3 0 broker-a 4 39 1007"
NUMBER = "0102030405060708090A0B0C0D0E0F1011"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=140)
HANDLES = st.one_of(
    st.just(HANDLE),
    st.lists(st.one_of(st.integers().map(str), TEXTS), min_size=6, max_size=10).map(" ".join),
)


def body_of(*entries: dict[str, str], group: str = "g", topic: str = "orders") -> bytes:
    names = {"group": {"name": group}, "topic": {"name": topic}}
    data: bytes = TYPES["AckMessageRequest"](**names, entries=entries).SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


def entry(message_id: str = NUMBER, handle: str = HANDLE, **more: str) -> dict[str, str]:
    return {"message_id": message_id, "receipt_handle": handle, **more}


def read(body: bytes) -> UsualAck | None:
    """Return what is read as bytes; None: nothing, or it is refused."""
    with contextlib.suppress(ReliableMQError, DecodeError):
        return usual_ack(body)
    return None


def agrees(ack: UsualAck, call: Any) -> bool:
    """Whether both say the same."""
    (own,) = call.entries
    handle = read_handle(own.receipt_handle)
    kind = TYPES["AckMessageEntry"]
    return (
        (ack.group, ack.topic) == (call.group.name, call.topic.name)
        and (ack.message_id, ack.handle) == (own.message_id, own.receipt_handle)
        and kind.FromString(ack.entry) == kind(**entry(ack.message_id, ack.handle))
        and ack.head._replace(offset=ack.offset) == handle.popped
        and ack.stored_topic == handle.real_topic(ack.topic, ack.group)
    )


@pytest.mark.parametrize("kind", ["0", "1", "2"])
def test_what_clients_write_is_read_as_bytes(kind: str) -> None:
    body = body_of(entry(handle=HANDLE.replace(" 0 ", f" {kind} ")))
    ack = usual_ack(body)
    assert ack is not None
    assert agrees(ack, decode_call("AckMessage", body))
    assert (ack.head.broker, ack.head.queue_id, ack.offset) == ("broker-a", 4, 39)


@pytest.mark.parametrize("size", [1, 60, 83, 84, 120])
def test_an_entry_may_be_short_or_long(size: int) -> None:
    """The number with its size has a byte, or two."""
    body = body_of(entry("x" * size))
    ack = usual_ack(body)
    assert ack is not None
    assert ack.message_id == "x" * size


@given(TEXTS, TEXTS, st.lists(st.builds(entry, TEXTS, HANDLES), max_size=2))
def test_any_call_is_read_as_protobuf_reads_it_or_left(
    group: str, topic: str, entries: list[dict[str, str]]
) -> None:
    body = body_of(*entries, group=group, topic=topic)
    ack = read(body)
    assert ack is None or agrees(ack, decode_call("AckMessage", body))


@given(st.data())
def test_spoilt_bytes_are_read_as_protobuf_reads_them_or_left(data: st.DataObject) -> None:
    body = bytearray(body_of(entry()))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    spoilt = bytes(body[: data.draw(st.integers(0, len(body)))])
    if data.draw(st.booleans()):
        spoilt = bytes(body)
    ack = read(spoilt)
    assert ack is None or agrees(ack, decode_call("AckMessage", spoilt))


@pytest.mark.parametrize(
    "body",
    [
        body_of(),
        body_of(entry(), entry()),
        body_of(entry(lite_topic="l")),
        body_of(entry("ä")),
        body_of(entry(), group="g" * 128),
        body_of(entry(handle=HANDLE + " 5")),
        body_of(entry(handle=HANDLE.replace("39", "-39"))),
        body_of(entry(handle=HANDLE.replace("39", "3" * 40))),
        body_of(entry(handle=HANDLE.replace("39", "3" * 19))),
        body_of(entry()) + b"\x1a\x00",
        b"\x01" + body_of(entry())[1:],
    ],
)
def test_other_forms_are_left(body: bytes) -> None:
    assert usual_ack(body) is None


def test_names_that_no_client_may_use_are_refused() -> None:
    for group, topic in (("g", "rmq_sys_x"), ("CID_RMQ_SYS_x", "orders"), ("a b", "orders")):
        with pytest.raises(RpcRefused):
            usual_ack(body_of(entry(), group=group, topic=topic))


def test_the_answer_has_the_bytes_of_an_object() -> None:
    ack = usual_ack(body_of(entry()))
    assert ack is not None
    status = {"code": 20000, "message": "OK"}
    result = {**entry(), "status": status}
    answer = TYPES["AckMessageResponse"](status=status, entries=[result])
    assert acknowledged(ack.entry).SerializeToString() == answer.SerializeToString()
