"""Consumers at the endpoint of our broker, through a real channel: each message by itself."""

from typing import Any

import pytest
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.interop.sdk_servers import Endpoint
from tests.waiting import Budget

from reliable_mq.gateway.codes import Code

pytestmark = pytest.mark.processes


def names(group: str, topic: str) -> dict[str, Any]:
    return {"group": {"name": group}, "topic": {"name": topic}}


def acknowledge(client: GrpcClient, group: str, topic: str, message: Any) -> int:
    system = message.system_properties
    entry = {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
    answer = client.call("AckMessage", **names(group, topic), entries=[entry])
    return int(answer.status.code)


def received(client: GrpcClient, group: str, topic: str, count: int, **more: Any) -> list[Any]:
    """Receive until so many messages have come."""
    found: list[Any] = []
    for _ in range(20):
        found += client.receive(group, topic, **more)[2]
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages have come")


def test_a_message_is_received_and_acknowledged(client: GrpcClient, endpoint: Endpoint) -> None:
    endpoint.make_topic("once", "NORMAL")
    client.consumer("once-readers", "once")
    client.send("once", b"take me", number=4, tag="red", keys=["k"])
    (message,) = received(client, "once-readers", "once", 1)
    system = message.system_properties
    assert (message.body, system.tag, system.delivery_attempt) == (b"take me", "red", 1)
    assert system.born_host == "127.0.0.1"
    assert acknowledge(client, "once-readers", "once", message) == Code.OK
    assert acknowledge(client, "once-readers", "once", message) == Code.OK  # twice is no fault
    code, text, found = client.receive("once-readers", "once")
    assert (code, text, found) == (Code.MESSAGE_NOT_FOUND, "no new message", [])


def test_a_message_that_is_given_back_comes_again(client: GrpcClient, endpoint: Endpoint) -> None:
    endpoint.make_topic("again", "NORMAL")
    client.consumer("again-readers", "again")
    client.send("again", b"later")
    (first,) = received(client, "again-readers", "again", 1)
    handle = first.system_properties.receipt_handle
    change = client.call(
        "ChangeInvisibleDuration",
        **names("again-readers", "again"),
        message_id=first.system_properties.message_id,
        receipt_handle=handle,
        invisible_duration={"seconds": 1},
    )
    assert change.status.code == Code.OK
    assert change.receipt_handle not in {"", handle}
    (second,) = received(client, "again-readers", "again", 1)
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert acknowledge(client, "again-readers", "again", second) == Code.OK


def test_a_dead_letter_is_forwarded(client: GrpcClient, endpoint: Endpoint) -> None:
    endpoint.make_topic("deadly", "NORMAL")
    client.consumer("deadly-readers", "deadly")
    client.send("deadly", b"no good")
    (message,) = received(client, "deadly-readers", "deadly", 1)
    forwarded = client.call(
        "ForwardMessageToDeadLetterQueue",
        **names("deadly-readers", "deadly"),
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    assert forwarded.status.code == Code.OK, forwarded.status.message
    with client_at(endpoint.address, "grave-digger") as other:
        other.consumer("grave-diggers", "%DLQ%deadly-readers")
        (dead,) = received(other, "grave-diggers", "%DLQ%deadly-readers", 1)
        assert dead.body == b"no good"


def test_an_orderly_group_gets_the_next_message_after_the_acknowledgement(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_topic("lane", "FIFO", queues=1)
    endpoint.make_group("lane-readers", is_orderly=True)
    client.consumer("lane-readers", "lane")
    for number in range(2):
        client.send("lane", b"%d" % number, number, message_type=2, message_group="g")
    one: dict[str, Any] = {"batch_size": 1, "attempt_id": "first"}
    (first,) = received(client, "lane-readers", "lane", 1, **one)
    assert first.body == b"0"
    again = client.receive("lane-readers", "lane", **one)[2]
    assert [each.body for each in again] == [b"0"]  # the same attempt: its answer may be lost
    other = client.receive("lane-readers", "lane", batch_size=1, attempt_id="second")
    assert other[0] == Code.MESSAGE_NOT_FOUND
    assert acknowledge(client, "lane-readers", "lane", again[0]) == Code.OK
    (second,) = received(client, "lane-readers", "lane", 1, batch_size=1, attempt_id="third")
    assert second.body == b"1"


def test_a_receive_waits_for_a_message(client: GrpcClient, endpoint: Endpoint) -> None:
    endpoint.make_topic("waited", "NORMAL")
    client.consumer("waiters", "waited")
    client.receive("waiters", "waited")  # the group begins here
    stream = client.stream(
        "ReceiveMessage",
        20,
        group={"name": "waiters"},
        message_queue={"topic": {"name": "waited"}},
        filter_expression={"type": 1, "expression": "*"},
        batch_size=1,
        invisible_duration={"seconds": 15},
        long_polling_timeout={"seconds": 15},
    )
    budget = Budget(10)
    client.send("waited", b"at last")
    bodies = [each.message.body for each in stream if each.HasField("message")]
    assert bodies == [b"at last"]
    assert budget.is_left()


def test_a_poll_that_is_cut_loses_no_message(client: GrpcClient, endpoint: Endpoint) -> None:
    endpoint.make_topic("cut", "NORMAL")
    client.consumer("cutters", "cut")
    client.receive("cutters", "cut")
    with client_at(endpoint.address, "leaver") as leaver:
        leaver.consumer("cutters", "cut")
        stream = leaver.stream(
            "ReceiveMessage",
            20,
            group={"name": "cutters"},
            message_queue={"topic": {"name": "cut"}},
            filter_expression={"type": 1, "expression": "*"},
            batch_size=1,
            invisible_duration={"seconds": 3600},
            long_polling_timeout={"seconds": 15},
        )
        stream.cancel()
    client.send("cut", b"mine")
    (message,) = received(client, "cutters", "cut", 1)
    assert message.body == b"mine"
