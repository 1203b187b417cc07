"""A master and its slave over sockets: one log, one set of queues, and reads from both."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path

import pytest
from tests.access.access_world import ON
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message, SendStatus
from reliable_mq.replication.ha_frames import encode_report
from reliable_mq.replication.ha_status import SlaveState
from reliable_mq.runtime import ha_slave, registrar, table_follower
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.table_follower import TableFollower
from reliable_mq.runtime.tls_settings import TlsSettings
from reliable_mq.testing.local_servers import free_port


@asynccontextmanager
async def serving_with(
    tls: TlsSettings,
    /,
    store: Path,
    name_servers: str = "",
    port: str = "",
    **properties: str,
) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(
        BrokerOptions(
            store=store,
            port=int(port or 0),
            name_server_port=0,
            name_servers=name_servers,
            tls=tls,
            properties={
                "mappedFileSizeCommitLog": str(1024 * 1024),
                "maxMessageSize": "100000",
                **properties,
            },
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def serving(
    store: Path, name_servers: str = "", port: str = "", **properties: str
) -> AbstractAsyncContextManager[BrokerServer]:
    return serving_with(TlsSettings(), store, name_servers, port, **properties)


MASTER = {"brokerRole": "ASYNC_MASTER"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


def log_of(store: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((store / "commitlog").iterdir())}


def end_of(server: BrokerServer) -> int:
    return server._core.state.store.dispatched


def slaves_of(server: BrokerServer) -> list[SlaveState]:
    place = server._replication.master
    assert place is not None
    return place.slaves


def test_a_slave_copies_the_log_and_serves_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **MASTER) as master:
            address = master.name_server_address
            async with AsyncClient(address) as client:
                await client.create_topic("t", 2)
                for number in range(300):
                    await client.send(Message(topic="t", body=b"%d" % number * 5_000))
                async with serving(tmp_path / "slave", address, **SLAVE) as slave:
                    await eventually(lambda: end_of(slave) == end_of(master))
                    for number in range(300):
                        await client.send(Message(topic="t", body=b"%d" % number))
                    await eventually(lambda: end_of(slave) == end_of(master))
                    await eventually(lambda: "t" in slave._core.state.topics.by_name)
                async with serving(tmp_path / "slave", address, **SLAVE) as slave:
                    await client.send(Message(topic="t", body=b"last"))
                    await eventually(lambda: end_of(slave) == end_of(master))
                    for key, queue in master._core.state.store.queues.items():
                        own = slave._core.state.store.queues[key]
                        assert own.units(0, 10_000) == queue.units(0, 10_000)

    run_scene(scene())
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")


SYNC_MASTER = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "60000"}
HASTY_MASTER = {**SYNC_MASTER, "slaveTimeout": "2000"}
"""For tests in which a slave does not acknowledge. A disk that is used by others takes a second."""
PATIENT = ClientSettings(request_timeout_seconds=60.0)
"""How long a client waits for what a master says of its slaves."""


async def send_until_acknowledged(client: AsyncClient, body: bytes) -> None:
    """Send until a hasty master acknowledges: the disk may be slower than it allows."""

    async def is_acknowledged() -> bool:
        return (await client.send(Message(topic="t", body=body))).status is SendStatus.SEND_OK

    await eventually(is_acknowledged)


def test_a_synchronous_master_says_when_no_slave_has_the_message(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **SYNC_MASTER) as master:
            address = master.name_server_address
            async with AsyncClient(address, settings=PATIENT) as client:
                await client.create_topic("t", 1)
                alone = await client.send(Message(topic="t", body=b"alone"))
                assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
                async with serving(tmp_path / "slave", address, **SLAVE) as slave:
                    await eventually(lambda: end_of(slave) == end_of(master))
                    both = await client.send(Message(topic="t", body=b"both"))
                    assert both.status is SendStatus.SEND_OK
                    kept = slave._core.state.store.log.durable
                    assert kept == master._core.state.store.log.end, "on its disk, too"
                again = await client.send(Message(topic="t", body=b"again"))
                assert again.status is SendStatus.SLAVE_NOT_AVAILABLE

    run_scene(scene())


class HeldSyncs:
    """Syncs that end when the test says so."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def start(self, _files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        self.held.append(done)
        return True

    def let_go(self) -> None:
        while self.held:
            self.held.pop()()

    def close(self) -> None:
        pass


@contextmanager
def held_syncs(server: BrokerServer) -> Iterator[HeldSyncs]:
    """Hold the syncs of a broker until the end of the block."""
    held, writer = HeldSyncs(), server._log_writer
    real, writer._syncs = writer._syncs, held
    try:
        yield held
    finally:
        writer._syncs = real
        held.let_go()


def test_the_disks_of_a_synchronous_pair_work_at_the_same_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **SYNC_MASTER) as master:
            names = master.name_server_address
            async with (
                AsyncClient(names, settings=PATIENT) as client,
                serving(tmp_path / "slave", names, **SLAVE) as slave,
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: bool(slaves_of(master)))
                own, copy = (each._core.state.store.log for each in (master, slave))
                with held_syncs(master) as disk:
                    sent = asyncio.ensure_future(client.send(Message(topic="t", body=b"1")))
                    await eventually(lambda: 0 < copy.durable == own.end)
                    await eventually(lambda: slaves_of(master)[0].acknowledged == own.end)
                    assert own.durable == 0
                    assert not sent.done(), "the master's disk does not have it yet"
                    disk.let_go()
                    assert (await sent).status is SendStatus.SEND_OK

    run_scene(scene())


@pytest.mark.parametrize(
    ("flush", "settings", "status"),
    [
        ("disk", HASTY_MASTER, SendStatus.FLUSH_SLAVE_TIMEOUT),
        ("received", SYNC_MASTER, SendStatus.SEND_OK),
    ],
    ids=["disk", "received"],
)
def test_a_slave_reports_what_is_on_its_disk_or_what_it_has_received(
    tmp_path: Path, flush: str, settings: dict[str, str], status: SendStatus
) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "master", **settings) as master:
            names = master.name_server_address
            async with (
                AsyncClient(names, settings=PATIENT) as client,
                serving(tmp_path / "slave", names, **SLAVE, slaveFlush=flush) as slave,
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: bool(slaves_of(master)))
                with held_syncs(slave) as disk:
                    assert (await client.send(Message(topic="t", body=b"1"))).status is status
                    assert slave._core.state.store.log.durable == 0
                    await eventually(lambda: bool(disk.held))

    run_scene(scene())


@pytest.mark.parametrize("allowed", ["", "10.0.0.0/8"])
def test_with_access_control_only_slaves_at_allowed_addresses_get_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, allowed: str
) -> None:
    """This machine is allowed unless the setting says otherwise."""

    async def scene() -> None:
        own = {"haAllowedAddresses": allowed} if allowed else {}
        async with serving(tmp_path / "master", **MASTER, **ON, **own) as master:
            place = master._replication.master
            assert place is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(encode_report(0))
            given = await reader.read(1)
            writer.close()
        assert bool(given) != bool(allowed)

    run_scene(scene())
    told = [each for each in caplog.records if getattr(each, "event", "") == "slave_cut"]
    assert bool(told) == bool(allowed)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if getattr(each, "event", "") == event]


def test_a_slave_outlives_its_master_and_follows_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.1)
    port = str(free_port())
    own = {**MASTER, "haListenPort": str(free_port())}

    async def scene() -> None:
        names = NameServer()
        await names.start("127.0.0.1", 0)
        address = f"127.0.0.1:{names.port}"
        async with AsyncExitStack() as slaves:
            async with serving(tmp_path / "master", address, port, **own) as master:
                slave = await slaves.enter_async_context(
                    serving(tmp_path / "slave", address, **SLAVE)
                )
                async with AsyncClient(address) as client:
                    await client.create_topic("t", 1)
                    await client.send(Message(topic="t", body=b"1"))
                await eventually(lambda: end_of(slave) == end_of(master))
                await eventually(lambda: "t" in slave._core.state.topics.by_name)
            await eventually(lambda: told(caplog, "master_lost"))
            async with serving(tmp_path / "master", address, port, **own) as master:
                async with AsyncClient(address) as client:
                    await client.send(Message(topic="t", body=b"2"))
                await eventually(lambda: end_of(slave) == end_of(master))
        await names.close()

    run_scene(scene())
    assert len(told(caplog, "master_followed")) == 2
    assert len(told(caplog, "master_lost")) <= 2, "each reason once"
    assert told(caplog, "slave_gone")


def test_a_slave_that_starts_before_its_master_finds_it_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only with the next registration of all topics, which comes after 30 s."""
    monkeypatch.setattr(registrar, "MASTERLESS_SECONDS", 0.1)

    async def scene() -> None:
        names = NameServer()
        await names.start("127.0.0.1", 0)
        address = f"127.0.0.1:{names.port}"
        async with (
            serving(tmp_path / "slave", address, **SLAVE) as slave,
            serving(tmp_path / "master", address, **MASTER) as master,
        ):
            async with AsyncClient(address) as client:
                await client.create_topic("t", 1)
                await client.send(Message(topic="t", body=b"1"))
            await eventually(lambda: end_of(slave) == end_of(master) > 0)
        await names.close()

    run_scene(scene())


def test_a_slave_without_an_account_says_that_the_master_refuses_its_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries every five seconds, and says so once a minute."""
    take, tries = TableFollower._take, list[str]()

    async def counted(follower: TableFollower, address: str) -> bool:
        tries.append(address)
        return await take(follower, address)

    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 0.02)
    monkeypatch.setattr(TableFollower, "_take", counted)

    async def scene() -> None:
        names = NameServer()
        await names.start("127.0.0.1", 0)
        address = f"127.0.0.1:{names.port}"
        async with (
            serving(tmp_path / "master", address, **MASTER, **ON),
            serving(tmp_path / "slave", address, **SLAVE),
        ):
            await eventually(lambda: len(tries) > 5)
            await eventually(lambda: told(caplog, "master_lost"))
        await names.close()

    run_scene(scene())
    (first,) = told(caplog, "master_tables_missed")
    assert "request 21 is refused: username cannot be null" in first
    assert "does not say where its log begins" in told(caplog, "master_lost")[0]
