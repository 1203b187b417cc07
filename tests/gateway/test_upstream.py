"""What the endpoint asks brokers for itself, and what it makes of their answers."""

import asyncio

import pytest
from tests.gateway.fake_cluster import NAMES, FakeCluster

from reliable_mq.errors import ConnectionLost
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.runtime.grpc_upstream import GrpcUpstream
from reliable_mq.runtime.tls_remedies import SERVER_WORDS, tls_remedy
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, reply, request


def test_a_broker_that_is_busy_changes_neither_the_order_nor_the_types() -> None:
    cluster = FakeCluster()

    async def run() -> None:
        def busy(command: Command) -> Command:
            return reply(command, 2, "busy")

        cluster.answers |= {Ask.GET_SUBSCRIPTIONGROUP_CONFIG: busy, Ask.GET_TOPIC_CONFIG: busy}
        gateway = Gateway(cluster.ask, [NAMES], "test")
        for asked in (gateway.upstream.group("g"), gateway.upstream.kinds("orders")):
            with pytest.raises(RpcRefused) as caught:
                await asked
            assert caught.value.code is Code.TOO_MANY_REQUESTS
        cluster.answers |= {
            Ask.GET_SUBSCRIPTIONGROUP_CONFIG: lambda command: reply(command, 26, "none"),
            Ask.GET_TOPIC_CONFIG: lambda command: reply(command, 17, "none"),
        }
        assert not (await gateway.upstream.group("g")).is_orderly
        assert await gateway.upstream.kinds("orders")

    asyncio.run(run())


def test_a_cluster_that_closes_connections_is_told_with_the_settings_of_a_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A proxy is configured by properties: variables of an application change nothing."""

    async def run() -> None:
        closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        host, port = closing.sockets[0].getsockname()
        upstream = GrpcUpstream()
        with pytest.raises(ConnectionLost):
            await upstream.ask(f"{host}:{port}", request(Ask.GET_BROKER_CLUSTER_INFO), 5.0)
        await upstream.close()
        closing.close()

    asyncio.run(run())
    (line,) = caplog.messages
    assert "if it demands TLS, set tls.enable=true and tls.client.trustCertPath=FILE" in line
    assert "RELIABLE_MQ" not in line


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("the peer demands a certificate of this side", "set tls.client.certPath and tls.client."),
        ("the peer's certificate is refused: x", "or correct tls.client.trustCertPath"),
        ("what the peer sends is not TLS", "set tls.enable=false, or let the server have TLS"),
    ],
)
def test_each_remedy_names_properties(why: str, remedy: str) -> None:
    told = tls_remedy(why, words=SERVER_WORDS)
    assert remedy in told
    assert "RELIABLE_MQ" not in told
