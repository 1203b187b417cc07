"""Check-backs at the gateway of a fake cluster: who is asked, and who tells brokers of it."""

import asyncio

import pytest
from tests.gateway.fake_cluster import BROKER, NAMES, FakeCluster, Told, record_of

from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.asyncio_rights import Rights
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import RpcRefused
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, reply

SHOP, OWNER = Acting("10.0.0.1", "shop"), Acting("10.0.0.1", "owner")


class Recovering(Told):
    """A Telemetry stream of a producer."""

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the half messages that it was asked about."""
        name = "recover_orphaned_transaction_command"
        return [getattr(each, name).message.body for each in self.commands if each.HasField(name)]


class Cluster(FakeCluster):
    """Only `owner` and the endpoint itself may send to `orders`."""

    def __init__(self) -> None:
        super().__init__()
        self.answers[Ask.CHECK_TRANSACTION_STATE] = self._may_send
        self.answers[Ask.GET_TOPIC_CONFIG] = lambda command: reply(
            command, body=b'{"attributes":{"message.type":"TRANSACTION"}}'
        )

    @staticmethod
    def _may_send(command: Command) -> Command:
        may = ACTING.get() in {OWNER, None}
        return reply(command, 3 if may else 16, "not supported" if may else "no permission")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def settled() -> None:
    """Let what nobody waits for be done."""
    for _ in range(50):
        await asyncio.sleep(0)


async def producer(gateway: Gateway, acting: Acting, client_id: str) -> Recovering:
    """Come as a producer of `orders`."""
    settings = {"client_type": 1, "publishing": {"topics": [{"name": "orders"}]}}
    stream, caller = Recovering(), Caller(client_id, acting.host, {}, float("inf"))

    async def tell() -> None:
        ACTING.set(acting)
        await gateway.told(caller, TYPES["TelemetryCommand"](settings=settings), stream)

    await asyncio.create_task(tell())
    await settled()
    return stream


async def check_back(gateway: Gateway, number: int) -> None:
    """Let the broker ask about a half message."""
    asked = Command(
        code=Ask.CHECK_TRANSACTION_STATE,
        ext_fields={"tranStateTableOffset": str(number), "commitLogOffset": "99"},
        body=record_of(b"half", number, REAL_TOPIC="orders", PGROUP="orders"),
    )
    gateway.asked(BROKER, asked)
    await settled()


def test_a_half_message_is_shown_only_to_those_who_may_send_to_its_topic(cluster: Cluster) -> None:
    async def run() -> None:
        gateway = Gateway(cluster.ask, [NAMES], "test")
        strangers = [await producer(gateway, SHOP, f"shop-{number}") for number in range(20)]
        await check_back(gateway, 1)
        owner = await producer(gateway, OWNER, "owner-1")
        for number in range(10):
            await check_back(gateway, number)
        assert len(owner.bodies) == 10
        assert not any(each.bodies for each in strangers)

    asyncio.run(run())


def test_a_producer_that_may_send_no_longer_is_shown_no_half_message(cluster: Cluster) -> None:
    """Routes may be told for 20 seconds more; a message of somebody else is another thing."""

    async def run() -> None:
        loop, later = asyncio.get_running_loop(), 0.0
        time = loop.time
        loop.time = lambda: time() + later  # type: ignore[method-assign]
        gateway = Gateway(cluster.ask, [NAMES], "test")
        owner = await producer(gateway, OWNER, "owner-1")
        await check_back(gateway, 1)
        cluster.answers[Ask.CHECK_TRANSACTION_STATE] = lambda command: reply(command, 16, "no")
        later = 1.5
        await check_back(gateway, 2)
        assert len(owner.bodies) == 1

    asyncio.run(run())


def test_who_may_send_is_asked_also_when_the_clock_begins(cluster: Cluster) -> None:
    async def run() -> None:
        asyncio.get_running_loop().time = lambda: 0.0  # type: ignore[method-assign]
        rights = Rights(Upstream(cluster.ask, [NAMES]))
        ACTING.set(SHOP)
        with pytest.raises(RpcRefused):
            await rights.send("orders")

    asyncio.run(run())


def test_the_endpoint_is_a_member_as_itself_whoever_comes_first(cluster: Cluster) -> None:
    async def run() -> None:
        gateway = Gateway(cluster.ask, [NAMES], "test")
        await producer(gateway, SHOP, "shop-1")
        assert cluster.counts[Ask.HEART_BEAT] == 0  # nobody here could be asked
        await producer(gateway, OWNER, "owner-1")
        (acting,) = [
            acting
            for command, acting in zip(cluster.asked, cluster.actings, strict=True)
            if command.code == Ask.HEART_BEAT
        ]
        assert acting is None

    asyncio.run(run())
