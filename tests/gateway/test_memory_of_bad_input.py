"""What is refused leaves no memory: bytes that are no calls, and acknowledgements of one message.

Names and handles that do not exist are in `test_bad_calls`, floods of streams in
`test_bad_consumers`.
"""

import grpc
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient
from tests.gateway.test_bad_calls import connected, resident
from tests.gateway.test_consumers import acknowledge, received
from tests.interop.sdk_servers import Endpoint

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE

pytestmark = pytest.mark.processes

GROWTH_MAX = 6 * 1024 * 1024
LONG = {"seconds": 600}


def test_malformed_calls_and_http1_leave_nothing_in_memory(
    broker: ReliableMQBroker, endpoint: Endpoint, client: GrpcClient
) -> None:
    method = client.channel.unary_unary(f"/{SERVICE}/SendMessage")

    def refused(calls: int, connections: int) -> None:
        for _ in range(calls):
            with pytest.raises(grpc.RpcError):
                method(b"\xff" * 10_000, metadata=client.headers, timeout=60)
        for number in range(connections):
            with connected(endpoint) as raw:
                http1 = b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 10_000 + b"\r\n\r\n"
                raw.sendall(http1 if number % 2 else PREFACE + frame_of(0, 0, 1, b"x" * 10_000))
                while raw.recv(65_536):
                    pass

    refused(300, 100)
    before = resident(broker)
    refused(1_500, 400)
    assert client.send("plain").status.code == Code.OK
    assert resident(broker) - before < GROWTH_MAX


def test_one_message_that_is_acknowledged_a_thousand_times_leaves_nothing_in_memory(
    broker: ReliableMQBroker, endpoint: Endpoint, client: GrpcClient
) -> None:
    endpoint.make_topic("often", "NORMAL")
    client.consumer("often-readers", "often")
    client.send("often")
    (message,) = received(client, "often-readers", "often", 1, invisible_duration=LONG)
    for _ in range(200):
        assert acknowledge(client, "often-readers", "often", message) == Code.OK
    before = resident(broker)
    for _ in range(1_000):
        assert acknowledge(client, "often-readers", "often", message) == Code.OK
    assert resident(broker) - before < GROWTH_MAX
    assert client.receive("often-readers", "often")[0] == Code.MESSAGE_NOT_FOUND
