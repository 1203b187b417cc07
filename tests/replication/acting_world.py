"""A cluster in one process: a name server, a pair whose slave may stand in, another master."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.broker_core.raw_client import RawClient
from tests.replication.test_pair import serving
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.name_server.core import NameServerConfig
from reliable_mq.replication import standing_in as rule
from reliable_mq.runtime import ha_master, pre_online, sends_elsewhere, standing_in, table_follower
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record

ACTS = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}
DELAYS = {"messageDelayLevel": "1s 8s 30m"}
LATER = 3
"""The delay level of messages that are not due in a test, unless it says so."""


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slave look and act soon; and let nobody give up what a busy machine only delays.

    A send that is given up is sent again, and a master that gives its slaves up repeats what they
    have delivered.
    """
    monkeypatch.setattr(rule, "ALONE_SECONDS", 0.1)
    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 0.2)
    monkeypatch.setattr(standing_in, "LEARN_SECONDS", 0.2)
    monkeypatch.setattr(sends_elsewhere, "SEND_SECONDS", 60.0)
    monkeypatch.setattr(pre_online, "GIVE_UP_SECONDS", 300.0)
    monkeypatch.setattr(ha_master, "FINISH_SECONDS", 60.0)


class ActingWorld:
    """The cluster. Brokers go by name: "master", "slave", "slave2", "other"."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        self.folder = folder
        self._properties = properties
        self.name_server = NameServer(config=NameServerConfig(support_acting_master=True))
        self.brokers: dict[str, BrokerServer] = {}
        self._stacks: dict[str, AsyncExitStack] = {}
        self._ports = {
            name: (str(free_port()), str(free_port()))
            for name in ("master", "slave", "slave2", "other")
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    async def start(self, name: str, **properties: str) -> BrokerServer:
        """Start a broker."""
        port, ha_port = self._ports[name]
        settings = {**DELAYS, "brokerName": "pair", **ACTS, **self._properties, **properties}
        if name == "other":
            settings |= {"brokerName": "other", "enableSlaveActingMaster": "false"}
        elif name == "master":
            settings = {"brokerRole": "ASYNC_MASTER", "haListenPort": ha_port, **settings}
        else:
            role = {"brokerRole": "SLAVE", "slaveReadEnable": "true"}
            settings = {**role, "brokerId": "2" if name == "slave2" else "1", **settings}
        stack = self._stacks[name] = AsyncExitStack()
        server = await stack.enter_async_context(
            serving(self.folder / name, self.address, port, **settings)
        )
        self.brokers[name] = server
        return server

    async def restart_name_server(self) -> None:
        """End the name server, and start an empty one at its port."""
        port = self.name_server.port
        await self.name_server.close()
        self.name_server = NameServer(config=NameServerConfig(support_acting_master=True))
        await self.name_server.start("127.0.0.1", port)

    async def stop(self, name: str) -> None:
        """Stop a broker."""
        del self.brokers[name]
        await self._stacks.pop(name).aclose()

    async def stop_known_master(self) -> None:
        """Stop the master when its slave knows which delayed messages it has delivered.

        The slave learns that with the tables, and would deliver later ones again.
        """
        master, slave = (self.brokers[each]._core.state.schedule for each in ("master", "slave"))
        await eventually(lambda: not master.in_flight and master.saved() == slave.saved())
        await self.stop("master")  # it delivers no more from its first step on

    def end(self, name: str) -> int:
        return self.brokers[name]._core.state.store.dispatched

    def is_acting(self, name: str = "slave") -> bool:
        return self.brokers[name]._core.state.stand_in.is_acting

    def bodies(self, name: str, topic: str = "t") -> list[bytes]:
        """Return what the queues of a topic hold at a broker."""
        return [record.body for record in self.records(name, topic)]

    def records(self, name: str, topic: str = "t") -> list[Record]:
        store = self.brokers[name]._core.state.store
        found = []
        for (each, _queue_id), queue in sorted(store.queues.items()):
            if each == topic:
                records = (store.reader.message(queue, n) for n in range(queue.first, queue.end))
                found += [record for record in records if record is not None]
        return found

    async def send(self, name: str, bodies: Collection[bytes], **properties: object) -> None:
        """Send messages to queue 0 of topic "t" at one broker."""
        texts = {key: str(value) for key, value in properties.items()}

        def sent() -> None:
            with RawClient(self.brokers[name].address) as client:
                for number, body in enumerate(bodies):
                    ids = {"UNIQ_KEY": f"{id(bodies):016X}{number:016X}"}
                    text = encode_properties({**ids, **texts}).decode()
                    header = {"a": "p", "b": "t", "c": "TBW102", "d": 1, "e": 0, "f": 0}
                    header |= {"g": now_ms(), "h": 0, "i": text}
                    answer = client.ask(RequestCode.SEND_MESSAGE_V2, header, body)
                    assert answer.code == ResponseCode.SUCCESS, answer.remark

        await asyncio.to_thread(sent)

    async def copied(self, name: str = "slave") -> None:
        """Wait until a slave has the log and the tables of its master."""
        await eventually(lambda: self.end(name) == self.end("master"))
        state = self.brokers[name]._core.state
        await eventually(lambda: "t" in state.topics.by_name)
        for _ in range(2):  # what is known of timers is of the round before
            taken = state.master_tables.taken_ms
            await eventually(lambda: state.master_tables.taken_ms > taken)  # noqa: B023

    async def close(self) -> None:
        for name in list(self.brokers):
            await self.stop(name)
        await self.name_server.close()


@asynccontextmanager
async def acting_world(
    folder: Path, names: Collection[str] = (), **properties: str
) -> AsyncIterator[ActingWorld]:
    """Start a cluster with these brokers, and topic "t" at all masters."""
    world = ActingWorld(folder, properties)
    await world.name_server.start("127.0.0.1", 0)
    try:
        for name in names:
            await world.start(name)
        async with AsyncClient(world.address) as client:
            await client.create_topic("t", 1)
        yield world
    finally:
        await world.close()
