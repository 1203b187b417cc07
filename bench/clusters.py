"""Clusters of a measurement or a test: our broker, Apache's, two of each, one of each.

A cluster is masters by name, each of which may be killed, stalled and started again, and a name
server that outlives them (the one of a single bundled broker, which is inside it, does not). Every
broker asks early for what becomes of a half message.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import uvloop

from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.child_process import LoggedProcess
from bench.reliable_mq_broker import ReliableMQBroker
from bench.reliable_mq_name_server import ReliableMQNameServer
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.routes import masters
from reliable_mq.client.sending.asyncio_sending import engine_of
from reliable_mq.errors import ReliableMQError

WHOLE_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
HASTY = {
    "transactionCheckInterval": "100",
    "transactionTimeOut": "100",
    "transactionCheckMax": "1000",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
}
HASTY_THERE = {**HASTY, "transactionOpBatchInterval": "100"}


class Master(Protocol):
    """A broker of either kind in a process of its own."""

    address: str

    @property
    def process(self) -> LoggedProcess:
        """The running process."""

    def start(self) -> None:
        """Start it again, on its port and store; returns when it serves."""


class Ours:
    """One of our brokers."""

    def __init__(self, broker: ReliableMQBroker) -> None:
        self._broker = broker
        self.address = broker.address

    @property
    def process(self) -> LoggedProcess:
        return self._broker.process

    def start(self) -> None:
        self._broker.start()


class Apaches:
    """One of Apache's brokers."""

    def __init__(self, server: ApacheRocketMQ) -> None:
        self._server = server
        self.address = server.address

    @property
    def process(self) -> LoggedProcess:
        return self._server.broker

    def start(self) -> None:
        self._server.start_broker()


@dataclass(frozen=True)
class Cluster:
    """Running servers."""

    name_server_address: str
    masters: Mapping[str, Master]

    @property
    def follows_at_once(self) -> bool:
        """Whether every broker's queues have a message when its log has it: not so Apache's."""
        return all(isinstance(master, Ours) for master in self.masters.values())

    def kill(self, name: str) -> None:
        """SIGKILL to a master: nothing is flushed, closed or said goodbye to."""
        self.masters[name].process.kill()

    def start(self, name: str) -> None:
        """Start a master that was killed, and wait until the name server tells of all."""
        self.masters[name].start()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Return when the name server tells of all masters: a broker registers when it likes.

        Raises:
            TimeoutError: when it does not.
        """
        uvloop.run(self._whole())

    async def _whole(self) -> None:
        expected = {master.address for master in self.masters.values()}
        async with (
            AsyncClient(self.name_server_address) as client,
            asyncio.timeout(WHOLE_SECONDS_MAX),
        ):
            while await _told(client) != expected:
                await asyncio.sleep(LOOK_SECONDS)


async def _told(client: AsyncClient) -> set[str]:
    try:
        engine = engine_of(client)
        return set(await engine.run(masters(engine.name_servers)))
    except ReliableMQError:
        return set()


@contextmanager
def one_of_ours(directory: Path) -> Iterator[Cluster]:
    with ReliableMQBroker(directory, settings=HASTY) as broker:
        yield Cluster(broker.name_server_address, {"ours": Ours(broker)})


@contextmanager
def two_of_ours(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as running:
        name_server = running.enter_context(ReliableMQNameServer(directory))
        found: dict[str, Master] = {}
        for name in ("ours-a", "ours-b"):
            broker = ReliableMQBroker(
                directory / name,
                settings={**HASTY, "brokerName": name},
                name_servers=name_server.address,
            )
            found[name] = Ours(running.enter_context(broker))
        yield Cluster(name_server.address, found)


def apaches(directory: Path, name: str, name_servers: str = "") -> ApacheRocketMQ:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {**HASTY_THERE, "brokerName": name}
    return ApacheRocketMQ(
        directory, "ASYNC_FLUSH", settings, name_servers, flags=SMALL_BROKER_FLAGS
    )


@contextmanager
def running_apaches(server: ApacheRocketMQ) -> Iterator[ApacheRocketMQ]:
    """Start what is there of the two servers, and kill them: nobody reads their files after."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def one_of_apaches(directory: Path) -> Iterator[Cluster]:
    with running_apaches(apaches(directory, "apache")) as server:
        yield Cluster(server.name_server_address, {"apache": Apaches(server)})


@contextmanager
def two_of_apaches(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as running:
        first = running.enter_context(running_apaches(apaches(directory / "a", "apache-a")))
        name_servers = first.name_server_address
        second = apaches(directory / "b", "apache-b", name_servers)
        running.enter_context(running_apaches(second))
        found = {"apache-a": Apaches(first), "apache-b": Apaches(second)}
        yield Cluster(name_servers, found)


def mixed(asks_ours: bool) -> Callable[[Path], AbstractContextManager[Cluster]]:
    """One broker of each kind, both registered at a name server of each kind."""

    @contextmanager
    def cluster(directory: Path) -> Iterator[Cluster]:
        with ExitStack() as running:
            ours_to_ask = running.enter_context(ReliableMQNameServer(directory)).address
            server = apaches(directory / "apache", "apache")
            theirs_to_ask = server.name_server_address
            both = f"{theirs_to_ask};{ours_to_ask}"
            server.settings["namesrvAddr"] = both
            running.enter_context(running_apaches(server))
            broker = ReliableMQBroker(
                directory / "ours", settings={**HASTY, "brokerName": "ours"}, name_servers=both
            )
            running.enter_context(broker)
            found: dict[str, Master] = {"ours": Ours(broker), "apache": Apaches(server)}
            yield Cluster(ours_to_ask if asks_ours else theirs_to_ask, found)

    return cluster


KINDS: Mapping[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    "bundled": one_of_ours,
    "two bundled": two_of_ours,
    "apache": one_of_apaches,
    "two apache": two_of_apaches,
    "mixed, our name server": mixed(asks_ours=True),
    "mixed, Apache's name server": mixed(asks_ours=False),
}
OF_OURS = frozenset({"bundled", "two bundled"})
