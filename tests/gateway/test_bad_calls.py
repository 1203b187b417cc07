"""Bad input at the endpoint of our broker: a code, a text, and nobody else's trouble."""

import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.interop.sdk_servers import Endpoint
from tests.waiting import Budget

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE

pytestmark = pytest.mark.processes

ASKED = [(b":method", b"POST"), (b":scheme", b"http")]


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


def message(topic: str = "plain", **system: Any) -> dict[str, Any]:
    given = {"message_id": "M", "body_encoding": 1, **system}
    return {"topic": {"name": topic}, "body": b"x", "system_properties": given}


@pytest.mark.parametrize(
    "second",
    [
        {"message_type": 4},
        {"delivery_timestamp": {"seconds": 4_000_000_000}},
        {"message_group": "g"},
        {"body_encoding": 2},
    ],
)
def test_messages_of_one_call_are_of_one_kind(client: GrpcClient, second: dict[str, Any]) -> None:
    answer = client.call("SendMessage", messages=[message(), message(**second)])
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "of one call" in answer.status.message


@pytest.mark.parametrize(
    ("topic", "system"),
    [("halves", {"message_type": 4}), ("late", {"delivery_timestamp": {"seconds": 1}})],
)
def test_half_and_delayed_messages_are_sent_alone(
    client: GrpcClient, topic: str, system: dict[str, Any]
) -> None:
    answer = client.call("SendMessage", messages=[message(topic, **system)] * 2)
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "is sent alone" in answer.status.message


@pytest.mark.parametrize(
    ("system", "code"),
    [
        ({"message_id": "M\x01"}, Code.ILLEGAL_MESSAGE_ID),
        ({"trace_context": "a\x02b"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"born_host": "h\x01"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"trace_context": "t" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_texts_that_cannot_be_stored_are_refused(
    client: GrpcClient, system: dict[str, str], code: Code
) -> None:
    answer = client.call("SendMessage", messages=[message(**system)])
    assert answer.status.code == code, answer.status.message


def test_a_transaction_ends_in_one_way_or_the_other(client: GrpcClient) -> None:
    budget = Budget(2)
    answer = client.call("EndTransaction", topic={"name": "halves"}, transaction_id="M@b@1@1")
    assert answer.status.code == Code.BAD_REQUEST
    assert "COMMIT or ROLLBACK" in answer.status.message
    assert budget.is_left()  # no broker is asked: it would not answer


def test_a_call_without_a_client_id_is_refused(endpoint: Endpoint) -> None:
    with client_at(endpoint.address, "") as client:
        assert client.send("plain").status.code == Code.CLIENT_ID_REQUIRED
        code, _, _ = client.receive("g", "plain")
        assert code == Code.CLIENT_ID_REQUIRED
        with pytest.raises(grpc.RpcError) as caught:
            next(client.telemetry())
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


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
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no publishing or subscription data" in caught.value.details()


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
    names: dict[str, Any] = {"group": {"name": "readers"}, "topic": {"name": "plain"}}
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
        method(b"", metadata=client.headers, timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_request_that_cannot_be_decoded_is_the_callers_trouble_only(client: GrpcClient) -> None:
    method = client.channel.unary_unary(f"/{SERVICE}/SendMessage")
    with pytest.raises(grpc.RpcError) as caught:
        method(b"\xff" * 100, metadata=client.headers, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
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
        raw.settimeout(60)
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
            names: dict[str, Any] = {"group": {"name": name}, "topic": {"name": name}}
            client.call("AckMessage", **names, entries=entries)

    refused(300, "first")
    before = resident(broker)
    refused(1_500, "second")
    assert resident(broker) - before < 6 * 1024 * 1024


def test_a_long_topic_or_address_is_not_repeated_for_each_queue(client: GrpcClient) -> None:
    long = {"scheme": 1, "addresses": [{"host": "h" * 5_000, "port": 1}]}
    named: dict[str, Any] = {"topic": {"name": "plain"}, "endpoints": long}
    for answer in (
        client.call("QueryRoute", **named),
        client.call("QueryAssignment", **named, group={"name": "g"}),
    ):
        assert answer.status.code == Code.BAD_REQUEST
        assert answer.ByteSize() < 200


def test_commands_that_come_faster_than_they_are_done_end_their_stream(
    endpoint: Endpoint, client: GrpcClient
) -> None:
    path = f"/{SERVICE}/Telemetry".encode()
    head = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b"content-type", b"application/grpc"),
    ]
    block = block_of([*head, (b"x-mq-client-id", b"raw")])
    with connected(endpoint) as raw:
        begin = frame_of(4, 0, 0) + frame_of(1, 4, 1, block)
        raw.sendall(PREFACE + begin + frame_of(0, 0, 1, b"\0" * 5 * 3_000))
        raw.settimeout(60)
        got = b""
        while b"16 commands wait already" not in got:
            more = raw.recv(65_536)
            assert more, got
            got += more
    assert client.send("plain").status.code == Code.OK


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([*ASKED, (b":path", b"/x")], block_of([(b":status", b"415")])),
        (
            [*ASKED, (b":path", b"/x"), (b"content-type", b"application/grpc-web")],
            block_of([(b":status", b"415")]),
        ),
        (
            [
                *((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/x")),
                (b"content-type", b"application/grpc"),
            ],
            block_of([(b":status", b"405")]),
        ),
        (
            [*ASKED, (b"content-type", b"application/grpc"), (b":path", b"/x")],
            frame_of(3, 0, 1, b"\0\0\0\x01"),
        ),
    ],
)
def test_headers_that_are_not_those_of_a_call_end_it_only(
    endpoint: Endpoint, client: GrpcClient, headers: list[tuple[bytes, bytes]], wanted: bytes
) -> None:
    got = b""
    with connected(endpoint) as raw:
        raw.settimeout(60)
        raw.sendall(PREFACE + frame_of(4, 0, 0) + frame_of(1, 5, 1, block_of(headers)))
        raw.sendall(frame_of(6, 0, 0, b"still up"))
        while not (wanted in got and frame_of(6, 1, 0, b"still up") in got):
            more = raw.recv(65_536)
            assert more, got
            got += more
    assert client.send("plain").status.code == Code.OK
