"""The gRPC endpoint of our broker, through a real channel: producers, and clients that pull."""

import time
from typing import Any

import pytest
from tests.gateway.grpc_client import GrpcClient, until
from tests.interop.sdk_servers import Endpoint

from reliable_mq.gateway.codes import Code

pytestmark = pytest.mark.processes


def test_a_route_names_the_address_that_the_client_used(client: GrpcClient) -> None:
    answer = client.call("QueryRoute", topic={"name": "ordered"}, endpoints=client.endpoints)
    assert answer.status.code == Code.OK
    assert [each.id for each in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert list(queue.accept_message_types) == [2]
        assert queue.permission == 4
        assert queue.broker.id == 0
        (address,) = queue.broker.endpoints.addresses
        assert (address.host, address.port) == (client.host, client.port)


def test_settings_come_back_completed(client: GrpcClient) -> None:
    stream = client.telemetry()
    client.tell(settings={"client_type": 1, "publishing": {"topics": [{"name": "plain"}]}})
    command = next(stream)
    settings = command.settings
    assert command.status.code == Code.OK
    assert settings.publishing.max_body_size == 4 * 1024 * 1024
    assert settings.publishing.validate_message_type
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.exponential_backoff.max.seconds == 1
    assert settings.HasField("metric")


def test_settings_of_consumers_have_the_policy_of_their_group(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_group("careful", is_orderly=True, retries=4)
    stream = client.telemetry()
    entry = {"topic": {"name": "plain"}}
    subscription = {"group": {"name": "careful"}, "subscriptions": [entry]}
    client.tell(settings={"client_type": 3, "subscription": subscription})
    settings = next(stream).settings
    assert settings.backoff_policy.max_attempts == 5
    assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:4] == [
        *(1, 5, 10, 30)
    ]
    assert settings.subscription.fifo
    assert settings.subscription.receive_batch_size == 32
    assert settings.subscription.long_polling_timeout.seconds == 20


def test_a_message_is_sent(client: GrpcClient) -> None:
    answer = client.send("plain", number=7, tag="red", keys=["a", "b"])
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    (entry,) = answer.entries
    assert entry.message_id == f"ID{7:030d}"
    assert entry.offset >= 0


def test_messages_of_a_group_go_to_one_queue_and_others_take_turns(client: GrpcClient) -> None:
    before = ends(client, "ordered")
    for number in range(8):
        answer = client.send("ordered", number=number, message_type=2, message_group="g")
        assert answer.status.code == Code.OK
    grown = [after - first for after, first in zip(ends(client, "ordered"), before, strict=True)]
    assert sorted(grown) == [0, 0, 0, 8]
    before = ends(client, "plain")
    for number in range(8):
        client.send("plain", number=number)
    grown = [after - first for after, first in zip(ends(client, "plain"), before, strict=True)]
    assert grown == [2, 2, 2, 2]


def ends(client: GrpcClient, topic: str) -> list[int]:
    """Return where the queues of a topic end."""
    found = []
    for number in range(4):
        queue = {"topic": {"name": topic}, "id": number, "broker": {"name": broker_of(client)}}
        answer = client.call("QueryOffset", message_queue=queue, query_offset_policy=1)
        assert answer.status.code == Code.OK, answer.status.message
        found.append(answer.offset)
    return found


def broker_of(client: GrpcClient) -> str:
    answer = client.call("QueryRoute", topic={"name": "plain"}, endpoints=client.endpoints)
    return str(answer.message_queues[0].broker.name)


def test_several_messages_of_one_call_are_a_batch(client: GrpcClient) -> None:
    before = sum(ends(client, "plain"))
    messages = [
        {"topic": {"name": "plain"}, "body": b"x", "system_properties": {"message_id": f"M{n}"}}
        for n in range(3)
    ]
    answer = client.call("SendMessage", messages=messages)
    assert (answer.status.code, len(answer.entries)) == (Code.OK, 1)
    assert sum(ends(client, "plain")) == before + 3


def test_a_batch_of_one_message_group_goes_to_the_queue_of_the_group(client: GrpcClient) -> None:
    before = ends(client, "ordered")
    system: dict[str, Any] = {"message_type": 2, "message_group": "batched", "body_encoding": 1}
    messages: list[dict[str, Any]] = [
        {
            "topic": {"name": "ordered"},
            "body": b"x",
            "system_properties": {**system, "message_id": f"M{number}"},
        }
        for number in range(3)
    ]
    for _ in range(2):
        answer = client.call("SendMessage", messages=messages)
        assert answer.status.code == Code.OK, answer.status.message
    after = ends(client, "ordered")
    assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 0, 0, 6]


def test_a_pulled_queue_gives_messages_and_the_next_offset(client: GrpcClient) -> None:
    client.send("ordered", b"pull me", message_type=2, message_group="other", tag="T")
    queue = {"topic": {"name": "ordered"}, "broker": {"name": broker_of(client)}}
    bodies: list[bytes] = []
    for number in range(4):
        answers = list(
            client.stream(
                "PullMessage",
                group={"name": "pullers"},
                message_queue={**queue, "id": number},
                offset=0,
                batch_size=32,
            )
        )
        bodies += [each.message.body for each in answers if each.HasField("message")]
    assert b"pull me" in bodies
    update = client.call(
        "UpdateOffset", group={"name": "pullers"}, message_queue={**queue, "id": 1}, offset=3
    )
    assert update.status.code == Code.OK
    kept = client.call("GetOffset", group={"name": "pullers"}, message_queue={**queue, "id": 1})
    assert (kept.status.code, kept.offset) == (Code.OK, 3)


def test_a_transaction_is_committed(client: GrpcClient) -> None:
    client.producer("halves")
    before = sum(ends(client, "halves"))
    answer = client.send("halves", message_type=4)
    (entry,) = answer.entries
    assert entry.transaction_id.startswith(entry.message_id)
    assert sum(ends(client, "halves")) == before
    ended = client.call(
        "EndTransaction",
        topic={"name": "halves"},
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=1,
        source=1,
    )
    assert ended.status.code == Code.OK, ended.status.message
    assert sum(ends(client, "halves")) == before + 1


def test_a_producer_is_asked_about_its_transaction(client: GrpcClient) -> None:
    stream = client.producer("halves")
    (entry,) = client.send("halves", b"in doubt", number=99, message_type=4).entries
    asked = until(stream, "recover_orphaned_transaction_command", 40)
    while asked.message.body != b"in doubt":
        asked = until(stream, "recover_orphaned_transaction_command", 40)
    assert asked.message.system_properties.message_id == entry.message_id
    ended = client.call(
        "EndTransaction",
        topic={"name": "halves"},
        message_id=entry.message_id,
        transaction_id=asked.transaction_id,
        resolution=2,
        source=2,
    )
    assert ended.status.code == Code.OK, ended.status.message


def test_a_delayed_message_can_be_recalled(client: GrpcClient) -> None:
    due = {"seconds": int(time.time()) + 3600}
    (entry,) = client.send("late", message_type=3, delivery_timestamp=due).entries
    assert entry.recall_handle
    back = client.call("RecallMessage", topic={"name": "late"}, recall_handle=entry.recall_handle)
    assert (back.status.code, back.message_id) == (Code.OK, entry.message_id)
