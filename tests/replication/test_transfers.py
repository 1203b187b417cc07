"""When a master sends what it has stored, and in which pieces."""

import asyncio
from pathlib import Path

import pytest
from tests.replication.test_pair import (
    MASTER,
    SLAVE,
    SYNC_MASTER,
    end_of,
    held_syncs,
    serving,
    slaves_of,
)
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message, SendStatus
from reliable_mq.replication.ha_frames import Transfer, TransferReader, encode_report
from reliable_mq.runtime import gathered_batches, ha_master, slave_store
from reliable_mq.runtime.broker_server import BrokerServer

SEGMENT_SIZE = 1024 * 1024


def port_of(master: BrokerServer) -> int:
    assert master._replication.master is not None
    return master._replication.master.port


class Follower:
    """A slave that keeps the transfers, and reports each at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = TransferReader()
        self.transfers: list[Transfer] = []
        self.is_silent = False  # then nothing is reported until `report`

    async def follow(self) -> None:
        """Take what comes until the connection ends."""
        while data := await self._reader.read(1 << 20):
            for each in self._frames.feed(data):
                if each.data:
                    self.transfers.append(each)
                    if not self.is_silent:
                        self.report()

    def report(self) -> None:
        """Report all that has come."""
        offset, data = self.transfers[-1]
        self._writer.write(encode_report(offset + len(data)))


async def followed(master: BrokerServer) -> Follower:
    """Follow a master with an empty log."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
    writer.write(encode_report(0))
    follower = Follower(reader, writer)
    asyncio.get_running_loop().create_task(follower.follow())
    await eventually(lambda: bool(slaves_of(master)))
    return follower


def test_a_master_that_waits_for_no_slave_gathers_what_it_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_master, "GATHER_SECONDS", 60.0)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            follower = await followed(master)
            async with AsyncClient(master.name_server_address) as client:
                await client.create_topic("t", 1)
                for number in range(20):
                    await client.send(Message(topic="t", body=b"%d" % number))
            assert follower.transfers == []
            log = master._core.state.store.log
            whole = Transfer(0, log.read(0, log.end))
        await eventually(lambda: bool(follower.transfers))
        assert follower.transfers == [whole], "at the latest when it stops"

    run_scene(scene())


def test_a_master_that_stops_sends_more_than_one_turn_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever promotes the slave afterwards must lose nothing."""
    monkeypatch.setattr(ha_master, "GATHER_SECONDS", 60.0)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            follower = await followed(master)
            async with AsyncClient(master.name_server_address) as client:
                await client.create_topic("t", 1)
                for _ in range(20):
                    await client.send(Message(topic="t", body=bytes(60_000)))
            assert follower.transfers == []
            end = master._core.state.store.log.end
        await eventually(lambda: sum(len(each.data) for each in follower.transfers) >= end)

    run_scene(scene())


def test_a_synchronous_master_sends_each_turn_and_no_transfer_crosses_a_segment(
    tmp_path: Path,
) -> None:
    """Apache's slave writes a transfer into one file."""

    async def scene() -> None:
        async with serving(tmp_path / "m", **SYNC_MASTER) as master:
            follower = await followed(master)
            async with AsyncClient(master.name_server_address) as client:
                await client.create_topic("t", 1)
                sizes = [40_000, 10, 99_000, 20_000] * 20
                for size in sizes:
                    sent = await client.send(Message(topic="t", body=b"x" * size))
                    assert sent.status is SendStatus.SEND_OK
            transfers = follower.transfers
            assert len(transfers) >= len(sizes)
            assert [each.offset for each in transfers[1:]] == [
                each.offset + len(each.data) for each in transfers[:-1]
            ]
            log = master._core.state.store.log
            assert transfers[-1].offset + len(transfers[-1].data) == log.end > 2 * SEGMENT_SIZE
            for offset, data in transfers:
                assert offset // SEGMENT_SIZE == (offset + len(data) - 1) // SEGMENT_SIZE
                assert data == log.read(offset, len(data))

    run_scene(scene())


def test_what_comes_before_the_report_of_a_batch_is_one_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered_batches, "USUAL_SECONDS_MAX", 60.0)
    monkeypatch.setattr(gathered_batches, "HELD_SECONDS_MAX", 60.0)

    async def scene() -> None:
        async with serving(tmp_path / "m", **SYNC_MASTER) as master:
            follower = await followed(master)
            async with AsyncClient(master.name_server_address) as client:
                await client.create_topic("t", 1)
                await client.send(Message(topic="t", body=b"x"))
                known, follower.is_silent = len(follower.transfers), True
                log, sends = master._core.state.store.log, []
                for number in range(5):
                    end = log.end

                    def has_more(end: int = end) -> bool:
                        return log.end > end

                    message = Message(topic="t", body=b"%d" % number)
                    sends.append(asyncio.ensure_future(client.send(message)))
                    await eventually(has_more)
                assert len(follower.transfers) == known + 1
                follower.is_silent = False
                follower.report()
                for sent in await asyncio.gather(*sends):
                    assert sent.status is SendStatus.SEND_OK
                assert len(follower.transfers) == known + 2

    run_scene(scene())


def test_a_slave_takes_no_more_than_its_disk_has_synced_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a slave whose syncs do not end, it leaves the rest of a log with its master."""
    most, read_max, begun_max = 1024 * 1024, 256 * 1024, 100_000  # the last: of one record
    monkeypatch.setattr(slave_store, "_UNSYNCED_MAX", most)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            names = master.name_server_address
            async with (
                AsyncClient(names) as client,
                serving(tmp_path / "s", names, **SLAVE) as slave,
            ):
                await client.create_topic("t", 1)
                await eventually(lambda: bool(slaves_of(master)))
                log = slave._core.state.store.log
                with held_syncs(slave) as disk:
                    for _ in range(40):
                        await client.send(Message(topic="t", body=b"x" * 99_000))
                    await eventually(lambda: log.end > most)
                    for _ in range(1_000):
                        await asyncio.sleep(0)
                    assert log.end <= most + read_max + begun_max
                    disk.let_go()
                await eventually(lambda: end_of(slave) == end_of(master))

    run_scene(scene())
