"""The gRPC endpoint of our broker, through a real channel: producers, and what is refused."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at, until
from tests.interop.sdk_servers import BROKER_SETTINGS, Endpoint

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE

pytestmark = pytest.mark.processes

KINDS = {"plain": "NORMAL", "ordered": "FIFO", "late": "DELAY", "halves": "TRANSACTION"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("broker")
    running = ReliableMQBroker(directory, "ASYNC_FLUSH", settings=BROKER_SETTINGS, has_grpc=True)
    with running:
        yield running


@pytest.fixture(scope="module")
def endpoint(broker: ReliableMQBroker) -> Endpoint:
    found = Endpoint("ours", broker.grpc_address, broker.address)
    for name, kind in KINDS.items():
        found.make_topic(name, kind)
    return found


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[GrpcClient]:
    with client_at(endpoint.address) as made:
        yield made


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


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("nowhere", {}, Code.TOPIC_NOT_FOUND),
        ("bad topic", {}, Code.ILLEGAL_TOPIC),
        ("", {}, Code.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", {}, Code.ILLEGAL_TOPIC),
        ("plain", {"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ("plain", {"body": b"x" * (4 * 1024 * 1024 + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ("plain", {"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
        ("plain", {"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ("plain", {"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY),
        ("plain", {"message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("ordered", {}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("ordered", {"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ("late", {"delivery_timestamp": {"seconds": 9_999_999_999}}, Code.ILLEGAL_DELIVERY_TIME),
        (
            "halves",
            {"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": 3601}},
            Code.BAD_REQUEST,
        ),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(
    client: GrpcClient, topic: str, fields: dict[str, Any], code: Code
) -> None:
    answer = client.send(topic, **fields)
    assert answer.status.code == code, answer.status.message
    assert answer.status.message
    assert not answer.entries


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TAGS": "x"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a": "b\x01"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({f"k{n}": "v" for n in range(129)}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"k": "v" * 20_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_properties_that_cannot_be_sent_are_refused(
    client: GrpcClient, properties: dict[str, str], code: Code
) -> None:
    message = {
        "topic": {"name": "plain"},
        "body": b"x",
        "user_properties": properties,
        "system_properties": {"message_id": "M"},
    }
    assert client.call("SendMessage", messages=[message]).status.code == code


def test_no_messages_and_messages_of_several_topics_are_refused(client: GrpcClient) -> None:
    messages = [
        {"topic": {"name": topic}, "body": b"x", "system_properties": {"message_id": "M"}}
        for topic in ("plain", "late")
    ]
    for given in ([], messages):
        answer = client.call("SendMessage", messages=given)
        assert answer.status.code == Code.MESSAGE_CORRUPTED


def test_a_call_without_a_client_id_is_refused(endpoint: Endpoint) -> None:
    with client_at(endpoint.address, "") as client:
        assert client.send("plain").status.code == Code.CLIENT_ID_REQUIRED
        code, _, _ = client.receive("g", "plain")
        assert code == Code.CLIENT_ID_REQUIRED
        with pytest.raises(grpc.RpcError) as caught:
            next(client.telemetry())
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_an_unknown_client_is_told_to_say_what_it_is(endpoint: Endpoint) -> None:
    with client_at(endpoint.address, "stranger") as client:
        beat = client.call("Heartbeat", group={"name": "g"}, client_type=3)
        assert beat.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        gone = client.call("NotifyClientTermination")
        assert gone.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        code, text, _ = client.receive("g", "plain")
        assert code == Code.INTERNAL_SERVER_ERROR
        assert "settings" in text


def test_settings_that_say_nothing_end_the_stream(client: GrpcClient) -> None:
    stream = client.telemetry()
    client.tell(settings={"client_type": 1})
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert "no publishing or subscription data" in caught.value.details()  # type: ignore[attr-defined]


def test_a_client_that_has_left_is_unknown(client: GrpcClient) -> None:
    client.producer("plain")
    assert client.call("Heartbeat", client_type=1).status.code == Code.OK
    assert client.call("NotifyClientTermination").status.code == Code.OK
    assert client.call("Heartbeat", client_type=1).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"invisible_duration": {"seconds": 9}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 0}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": -5}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 43_201}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"seconds": 3.0}, Code.ILLEGAL_POLLING_TIME),
        ({"filter_expression": {"type": 1, "expression": "||"}}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_a_receive_that_cannot_be_is_refused(
    client: GrpcClient, fields: dict[str, Any], code: Code
) -> None:
    client.consumer("readers", "plain")
    found, text, messages = client.receive("readers", "plain", **fields)
    assert (found, messages) == (code, []), text


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        ("", Code.INTERNAL_SERVER_ERROR),
        ("what is this", Code.INTERNAL_SERVER_ERROR),
        ("1 2 3 4 0 broker 0 x", Code.INTERNAL_SERVER_ERROR),
        ("1 2 3 4 0 broker 0 1 1", Code.INVALID_RECEIPT_HANDLE),
        (f"1 {2**52} 60000 0 0 elsewhere 0 1 1", Code.INTERNAL_SERVER_ERROR),
        ("9" * 5000, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_a_handle_that_is_none_is_refused(client: GrpcClient, handle: str, code: Code) -> None:
    names = {"group": {"name": "readers"}, "topic": {"name": "plain"}}
    entries = [{"message_id": "M", "receipt_handle": handle}]
    answer = client.call("AckMessage", **names, entries=entries)
    assert answer.status.code == code, answer.status.message
    assert answer.entries[0].status.message
    change = client.call(
        "ChangeInvisibleDuration",
        **names,
        message_id="M",
        receipt_handle=handle,
        invisible_duration={"seconds": 30},
    )
    assert (change.status.code, change.receipt_handle) == (code, handle)


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_an_invisible_time_that_cannot_be_is_refused(client: GrpcClient, seconds: int) -> None:
    change = client.call(
        "ChangeInvisibleDuration",
        group={"name": "readers"},
        topic={"name": "plain"},
        receipt_handle="1 2 3 4 0 broker 0 1 1",
        invisible_duration={"seconds": seconds},
    )
    assert change.status.code == Code.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize(
    ("transaction_id", "code"),
    [("", Code.INVALID_TRANSACTION_ID), ("ID", Code.INTERNAL_SERVER_ERROR)],
)
def test_a_transaction_that_is_unknown_cannot_be_ended(
    client: GrpcClient, transaction_id: str, code: Code
) -> None:
    answer = client.call(
        "EndTransaction", topic={"name": "halves"}, transaction_id=transaction_id, resolution=1
    )
    assert answer.status.code == code


def test_calls_that_are_not_supported_say_so(client: GrpcClient) -> None:
    answer = client.call("SyncLiteSubscription", topic={"name": "plain"})
    assert answer.status.code == Code.NOT_IMPLEMENTED
    method = client.channel.unary_unary(f"/{SERVICE}/Nothing")
    with pytest.raises(grpc.RpcError) as caught:
        method(b"", metadata=client.headers, timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_a_request_that_cannot_be_decoded_is_the_callers_trouble_only(client: GrpcClient) -> None:
    method = client.channel.unary_unary(f"/{SERVICE}/SendMessage")
    with pytest.raises(grpc.RpcError) as caught:
        method(b"\xff" * 100, metadata=client.headers, timeout=5)
    assert caught.value.code() == grpc.StatusCode.INTERNAL  # type: ignore[attr-defined]
    assert client.send("plain").status.code == Code.OK


def test_http1_is_told_what_the_port_speaks(endpoint: Endpoint) -> None:
    with connected(endpoint) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"gRPC" in answer


def resident(broker: ReliableMQBroker) -> int:
    """Return the bytes of memory of a broker."""
    status = Path(f"/proc/{broker.pids[0]}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def connected(endpoint: Endpoint) -> socket.socket:
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        PREFACE + frame_of(0, 0, 1, b"x"),
        PREFACE + frame_of(6, 0, 0, b"x" * 8) * 10_000,
        PREFACE + frame_of(1, 0, 1, b"x" * 100) + frame_of(9, 0, 1, b"y" * 16_000) * 10,
        PREFACE + frame_of(4, 0, 0, struct.pack(">HI", 4, 2**31)),
    ],
)
def test_who_breaks_the_rules_loses_only_its_own_connection(
    endpoint: Endpoint, client: GrpcClient, data: bytes
) -> None:
    with connected(endpoint) as raw:
        raw.sendall(data)
        raw.settimeout(10)
        try:
            while raw.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    assert client.send("plain").status.code == Code.OK


def test_refused_calls_leave_nothing_in_memory(
    broker: ReliableMQBroker, client: GrpcClient
) -> None:
    """Names that do not exist, wrong handles and settings of clients that leave at once."""

    def refused(count: int, mark: str) -> None:
        for number in range(count):
            name = f"{mark}-{number}"
            client.send(name)
            client.call("QueryRoute", topic={"name": name})
            entries = [{"message_id": name, "receipt_handle": name}]
            names = {"group": {"name": name}, "topic": {"name": name}}
            client.call("AckMessage", **names, entries=entries)

    refused(300, "first")
    before = resident(broker)
    refused(1_500, "second")
    assert resident(broker) - before < 6 * 1024 * 1024
