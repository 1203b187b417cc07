"""A client at a port that speaks another protocol: it is told so, and the log has it once."""

import re
import socket

import grpc
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import client_at
from tests.interop.sdk_servers import Endpoint
from tests.waiting import Budget

from reliable_mq import Client, ClientSettings, Message
from reliable_mq.errors import RemoteError
from reliable_mq.gateway.codes import Code

pytestmark = pytest.mark.processes

QUICK = ClientSettings(retries=0, request_timeout_seconds=3.0)


def lines_of(broker: ReliableMQBroker, text: str) -> list[str]:
    log = (broker.directory / f"broker-{broker.starts}.log").read_text()
    return [line for line in log.splitlines() if text in line]


def test_a_grpc_client_at_the_remoting_port_learns_the_port_that_speaks_grpc(
    broker: ReliableMQBroker, endpoint: Endpoint
) -> None:
    port = endpoint.address.rpartition(":")[2]
    for address in (broker.address, broker.name_server_address):
        for _ in range(10):
            with client_at(address) as client, pytest.raises(grpc.RpcError) as caught:
                client.call("QueryRoute", topic={"name": "plain"})
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert caught.value.details().endswith(f"not gRPC: port {port} speaks gRPC")
    told = lines_of(broker, f"not gRPC: port {port} speaks gRPC")
    assert len(told) == 1, "one address and reason is told once a minute"
    assert re.search(r"127\.0\.0\.1:\d+: closed", told[0])


def test_a_grpc_client_at_the_wrong_port_does_not_connect_again_and_again(
    broker: ReliableMQBroker,
) -> None:
    """A farewell without an answer would make it connect hundreds of times a second."""
    budget = Budget(5)
    with client_at(broker.address) as client:
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                client.call("QueryRoute", topic={"name": "plain"})
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert budget.is_left()


def test_a_remoting_client_at_the_grpc_port_is_told_to_take_a_name_server(
    broker: ReliableMQBroker, endpoint: Endpoint
) -> None:
    with (
        Client(endpoint.address, settings=QUICK) as client,
        pytest.raises(RemoteError, match=r"speaks gRPC: give this client the address of a name"),
    ):
        client.send(Message(topic="plain", body=b"x"))
    assert len(lines_of(broker, "it speaks Apache RocketMQ's remoting protocol")) == 1
    with client_at(endpoint.address) as other:
        assert other.send("plain").status.code == Code.OK


def test_http_at_the_remoting_port_is_told_what_the_port_speaks(broker: ReliableMQBroker) -> None:
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"This port speaks Apache RocketMQ's remoting protocol, not HTTP.\n" in answer
    assert lines_of(broker, "not HTTP")
