"""A slave whose disk is full: one line says so, nothing is lost, and it goes on by itself."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.replication.followers import KeptLog, following
from tests.replication.test_bad_input import log_bytes, port_of, pretending
from tests.replication.test_pair import (
    HASTY_MASTER,
    PATIENT,
    SLAVE,
    end_of,
    log_of,
    send_until_acknowledged,
    serving,
    slaves_of,
    told,
)
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message, SendStatus
from reliable_mq.replication.ha_frames import encode_transfer
from reliable_mq.runtime import ha_slave, log_writer
from reliable_mq.runtime.disk_file import FileDiskFile


class FullDisk:
    """No file of a folder takes more bytes while it is full."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        write = FileDiskFile.write

        def refuse(file: FileDiskFile, at: int, parts: Sequence[bytes]) -> None:
            if self.is_full and Path(file._path).is_relative_to(folder):
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file, at, parts)

        patch.setattr(FileDiskFile, "write", refuse)


def test_a_slave_with_a_full_disk_serves_what_it_has_and_then_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.05)
    disk = FullDisk(tmp_path / "slave", monkeypatch)

    async def scene() -> None:
        async with (
            serving(tmp_path / "master", **HASTY_MASTER) as master,
            serving(tmp_path / "slave", master.name_server_address, **SLAVE) as slave,
            AsyncClient(master.name_server_address, settings=PATIENT) as client,
        ):
            await client.create_topic("t", 1)
            await eventually(lambda: slaves_of(master) and end_of(slave) == end_of(master))
            await send_until_acknowledged(client, b"first")
            has = end_of(slave)

            disk.is_full = True
            late = await client.send(Message(topic="t", body=b"late"))
            assert late.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            await eventually(lambda: told(caplog, "copy_without_room"))
            assert end_of(slave) == has, "it serves what its disk has"
            assert slaves_of(master)[0].acknowledged == has
            (line,) = told(caplog, "copy_without_room")
            assert f"the log of master 127.0.0.1:{port_of(master)}: " in line
            assert f"up to offset {has}, acknowledges no more" in line

            disk.is_full = False
            await eventually(lambda: end_of(slave) == end_of(master))
            await send_until_acknowledged(client, b"last")

    run_scene(scene())
    assert len(told(caplog, "disk_full")) == 1
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")


class RoomlessLog(KeptLog):
    """A store of a slave whose disk is full until somebody makes room."""

    def __init__(self) -> None:
        super().__init__()
        self.made = asyncio.Event()
        self.looks = 0  # how often somebody wanted to know

    @property
    def has_room(self) -> bool:
        self.looks += 1
        return self.made.is_set()

    async def room(self) -> None:
        await self.made.wait()


def test_a_master_that_is_not_read_is_not_called_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its slave has no room for longer than a silent master is waited for."""
    monkeypatch.setattr(ha_slave, "SILENT_SECONDS", 0.001)
    monkeypatch.setattr(ha_slave, "_TEND_SECONDS", 0.0)
    log = log_bytes()

    async def answer(begin: int, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_transfer(begin, log[begin:]))
        await asyncio.Event().wait()

    async def scene() -> None:
        store = RoomlessLog()
        async with pretending(answer) as (port, reports), following(port, store=store):
            await eventually(lambda: store.end == len(log))
            await eventually(lambda: store.looks > 1_000 or told(caplog, "master_lost"))
            assert len(reports) == 1, "one connection"
            assert not told(caplog, "master_lost")
            store.made.set()
            await eventually(lambda: len(told(caplog, "master_lost")) == 1)

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert "said nothing for" in line, "now it is"
