"""Wrong uses of consumers at the endpoint of our broker, and peers that cut or flood.

The codes are those of Apache's proxy 5.4.0. Its broker answers a second or foreign acknowledgement
with success.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.gateway.test_bad_calls import connected, resident
from tests.gateway.test_consumers import acknowledge, names, received
from tests.interop.sdk_servers import BROKER_SETTINGS, Endpoint
from tests.waiting import Budget, until

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.message_types import TYPES

pytestmark = pytest.mark.processes


def changed(client: GrpcClient, group: str, topic: str, handle: str, seconds: int) -> Any:
    return client.call(
        "ChangeInvisibleDuration",
        **names(group, topic),
        message_id="M",
        receipt_handle=handle,
        invisible_duration={"seconds": seconds},
    )


def test_a_handle_whose_time_is_over_is_expired_and_the_message_comes_again(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_topic("slow", "NORMAL")
    client.consumer("slow-readers", "slow")
    client.send("slow")
    (message,) = received(client, "slow-readers", "slow", 1)
    late = message.system_properties.receipt_handle.split(" ")
    late[1] = str(int(late[1]) - 15_000)  # as if it had been received earlier
    handle = " ".join(late)
    entry = {"message_id": "M", "receipt_handle": handle}
    refused = client.call("AckMessage", **names("slow-readers", "slow"), entries=[entry])
    assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
    assert "receipt handle is expired" in refused.entries[0].status.message
    change = changed(client, "slow-readers", "slow", handle, 30)
    assert (change.status.code, change.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, handle)
    assert acknowledge(client, "slow-readers", "slow", message) == Code.OK


@pytest.mark.parametrize(("group", "topic"), [("own", "other"), ("strangers", "own")])
def test_a_foreign_handle_acknowledges_nothing(
    client: GrpcClient, endpoint: Endpoint, group: str, topic: str
) -> None:
    """It is that of another group, or of another topic: the message comes again."""
    mine = f"own-{group}"
    endpoint.make_topic(mine, "NORMAL")
    endpoint.make_topic(f"other-{group}", "NORMAL")
    client.consumer(mine, mine)
    client.send(mine, b"mine")
    (message,) = received(client, mine, mine, 1, invisible_duration={"seconds": 10})
    theirs = f"other-{group}" if topic == "other" else mine
    with client_at(endpoint.address, "stranger-2") as other:
        code = acknowledge(other, mine if group == "own" else group, theirs, message)
        assert code in {Code.OK, Code.INTERNAL_SERVER_ERROR}
    (again,) = received(client, mine, mine, 1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"mine", 2)
    assert acknowledge(client, mine, mine, again) == Code.OK


def test_entries_that_are_right_are_acknowledged_beside_wrong_ones(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_topic("mixed", "NORMAL")
    client.consumer("mixed-readers", "mixed")
    client.send("mixed")
    (message,) = received(client, "mixed-readers", "mixed", 1)
    handles = (message.system_properties.receipt_handle, "1 2 3 4 0 broker 0 1 1", "nonsense")
    entries = [{"message_id": "M", "receipt_handle": each} for each in handles]
    answer = client.call("AckMessage", **names("mixed-readers", "mixed"), entries=entries)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [
        Code.OK,
        Code.INVALID_RECEIPT_HANDLE,
        Code.INTERNAL_SERVER_ERROR,
    ]
    assert all(each.status.message for each in answer.entries)


def test_an_acknowledgement_of_nothing_and_calls_with_bad_names_are_refused(
    client: GrpcClient,
) -> None:
    empty = client.call("AckMessage", **names("g", "plain"), entries=[])
    assert empty.status.code == Code.BAD_REQUEST
    assert "nothing to acknowledge" in empty.status.message
    client.consumer("g", "plain")
    for group, topic, code in (
        ("", "plain", Code.ILLEGAL_CONSUMER_GROUP),
        ("bad group", "plain", Code.ILLEGAL_CONSUMER_GROUP),
        ("g" * 256, "plain", Code.ILLEGAL_CONSUMER_GROUP),
        ("CID_RMQ_SYS_x", "plain", Code.ILLEGAL_CONSUMER_GROUP),
        ("g", "", Code.ILLEGAL_TOPIC),
        ("g", "bad topic", Code.ILLEGAL_TOPIC),
    ):
        found, text, messages = client.receive(group, topic)
        assert (found, messages) == (code, []), (group, topic, text)
        assert text
        entry = {"message_id": "M", "receipt_handle": "1 2 3 4 0 broker 0 1 1"}
        refused = client.call("AckMessage", **names(group, topic), entries=[entry])
        assert (refused.status.code, bool(refused.status.message)) == (code, True)


def test_an_invisible_time_of_nothing_gives_the_message_back_at_once(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_topic("back", "NORMAL")
    client.consumer("back-readers", "back")
    client.send("back")
    (message,) = received(client, "back-readers", "back", 1, invisible_duration={"seconds": 600})
    handle = message.system_properties.receipt_handle
    assert changed(client, "back-readers", "back", handle, 0).status.code == Code.OK
    (again,) = received(client, "back-readers", "back", 1)
    assert again.system_properties.delivery_attempt == 2


def test_a_deadline_shorter_than_the_shortest_poll_is_told(client: GrpcClient) -> None:
    client.consumer("hasty", "plain")
    code, text, messages = client.receive("hasty", "plain", seconds=4.0)
    assert (code, messages) == (Code.ILLEGAL_POLLING_TIME, [])
    assert text


def test_a_command_that_cannot_be_decoded_ends_its_stream_only(
    endpoint: Endpoint, client: GrpcClient
) -> None:
    method = client.channel.stream_stream(f"/{SERVICE}/Telemetry")
    with pytest.raises(grpc.RpcError) as caught:
        next(method(iter([b"\xff" * 100]), metadata=client.headers, timeout=60))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "cannot be decoded" in (caught.value.details() or "")
    with client_at(endpoint.address, "another") as other:
        other.producer("plain")
        assert other.call("Heartbeat", client_type=1).status.code == Code.OK


def head_of(name: str) -> bytes:
    path = f"/{SERVICE}/{name}".encode()
    head = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b"content-type", b"application/grpc"),
    ]
    return block_of([*head, (b"x-mq-client-id", b"raw")])


def bytes_of(name: str, **fields: Any) -> bytes:
    data: bytes = TYPES[f"{name}Request"](**fields).SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


def test_a_send_that_is_cut_in_its_middle_stores_nothing(
    endpoint: Endpoint, client: GrpcClient
) -> None:
    endpoint.make_topic("cut", "NORMAL")
    client.consumer("cut-readers", "cut")
    client.receive("cut-readers", "cut")  # the group begins here
    message = {
        "topic": {"name": "cut"},
        "body": b"x" * 5_000,
        "system_properties": {"message_id": "M"},
    }
    whole = bytes_of("SendMessage", messages=[message])
    begin = PREFACE + frame_of(4, 0, 0) + frame_of(1, 4, 1, head_of("SendMessage"))
    half = frame_of(0, 0, 1, whole[: len(whole) // 2])
    reset = frame_of(3, 0, 1, (8).to_bytes(4))
    for end in (b"", reset, frame_of(0, 1, 1, b"")):  # it leaves, resets, or says that this is all
        with connected(endpoint) as raw:
            raw.sendall(begin + half + end)
            raw.settimeout(60)
            raw.recv(65_536)
    client.send("cut", b"whole")
    (only,) = received(client, "cut-readers", "cut", 1)
    assert only.body == b"whole"


def test_a_stream_of_commands_that_is_cut_lets_its_client_be_told_again(
    endpoint: Endpoint,
) -> None:
    """A client whose connection breaks comes back with its settings, as the SDKs do."""
    for _ in range(20):
        with client_at(endpoint.address, "flapping") as client:
            client.producer("plain")
            assert client.call("Heartbeat", client_type=1).status.code == Code.OK


@pytest.fixture
def flooded(endpoint: Endpoint) -> Iterator[socket.socket]:
    """A connection with a thousand receives that wait."""
    endpoint.make_topic("quiet", "NORMAL")
    with client_at(endpoint.address, "raw") as known:
        known.consumer("quiet-readers", "quiet")
        call = bytes_of(
            "ReceiveMessage",
            group={"name": "quiet-readers"},
            message_queue={"topic": {"name": "quiet"}},
            filter_expression={"type": 1, "expression": "*"},
            batch_size=1,
            invisible_duration={"seconds": 15},
            long_polling_timeout={"seconds": 10},
        )
        head = head_of("ReceiveMessage")
        with connected(endpoint) as raw:
            raw.sendall(PREFACE + frame_of(4, 0, 0))
            streams = range(1, 2 * 1_000, 2)
            raw.sendall(
                b"".join(frame_of(1, 4, n, head) + frame_of(0, 1, n, call) for n in streams)
            )
            yield raw


def test_a_thousand_streams_of_one_client_hold_nobody_up_and_one_more_is_refused(
    endpoint: Endpoint, client: GrpcClient, flooded: socket.socket
) -> None:
    flooded.sendall(frame_of(1, 4, 2_001, head_of("ReceiveMessage")))
    refused = b"\0\0\4\3\0" + (2_001).to_bytes(4) + (7).to_bytes(4)  # a reset: REFUSED_STREAM
    got = b""
    flooded.settimeout(60)
    while refused not in got:
        more = flooded.recv(65_536)
        assert more, "its connection ended"
        got += more
    budget = Budget(2)
    assert client.send("plain").status.code == Code.OK
    assert budget.is_left()


def sockets(broker: ReliableMQBroker) -> int:
    (pid,) = broker.pids
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            count += str(each.readlink()).startswith("socket:")
    return count


def test_clients_with_a_thousand_streams_that_leave_again_and_again_leave_no_memory(
    broker: ReliableMQBroker, endpoint: Endpoint, client: GrpcClient
) -> None:
    endpoint.make_topic("quiet", "NORMAL")
    client.consumer("quiet-readers", "quiet")
    call = bytes_of("QueryRoute", topic={"name": "quiet"})
    head = head_of("ReceiveMessage")

    def flood(times: int) -> None:
        for _ in range(times):
            with connected(endpoint) as raw:
                raw.sendall(PREFACE + frame_of(4, 0, 0))
                streams = range(1, 2_000, 2)
                raw.sendall(
                    b"".join(frame_of(1, 4, n, head) + frame_of(0, 0, n, call) for n in streams)
                )
                raw.recv(65_536)
            until(lambda: sockets(broker) <= usual)  # its frames wait for turns of the loop

    usual = sockets(broker)
    flood(10)
    assert client.send("plain").status.code == Code.OK
    before = resident(broker)
    flood(40)
    assert client.send("plain").status.code == Code.OK
    assert resident(broker) - before < 12 * 1024 * 1024


def test_a_thousand_calls_of_one_client_at_once_are_all_answered(client: GrpcClient) -> None:
    client.consumer("many", "plain")
    with ThreadPoolExecutor(64) as threads:
        calls = [threads.submit(client.send, "plain", b"x", number) for number in range(1_000)]
        assert {each.result().status.code for each in calls} == {Code.OK}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A broker that makes no groups by itself."""
    directory: Path = tmp_path_factory.mktemp("strict")
    settings = {**BROKER_SETTINGS, "autoCreateSubscriptionGroup": "false"}
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings, has_grpc=True) as running:
        endpoint = Endpoint("ours", running.grpc_address, running.address)
        endpoint.make_topic("plain", "NORMAL")
        yield endpoint


def test_a_group_that_does_not_exist_is_named(strict: Endpoint) -> None:
    with client_at(strict.address) as client:
        client.consumer("nobody-made-it", "plain")
        code, text, messages = client.receive("nobody-made-it", "plain")
        assert (code, messages) == (Code.CONSUMER_GROUP_NOT_FOUND, []), text
        assert "nobody-made-it" in text
    strict.make_group("made")
    with client_at(strict.address, "client-2") as client:
        client.consumer("made", "plain")
        assert client.receive("made", "plain")[0] == Code.MESSAGE_NOT_FOUND


def test_a_client_that_nobody_knows_does_not_change_what_others_hold(
    client: GrpcClient, endpoint: Endpoint
) -> None:
    endpoint.make_topic("held", "NORMAL")
    client.consumer("holders", "held")
    client.send("held")
    (message,) = received(client, "holders", "held", 1)
    with client_at(endpoint.address, "unknown-one") as other:
        gone = other.call("NotifyClientTermination", group={"name": "holders"})
        assert gone.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert acknowledge(client, "holders", "held", message) == Code.OK
