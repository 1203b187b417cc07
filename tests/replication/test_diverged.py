"""Logs that disagree: found before a byte is copied, cut only when nobody was told "stored"."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.replication.test_pair import MASTER, SLAVE, SYNC_MASTER, end_of, log_of, serving, told
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message, SendStatus
from reliable_mq.runtime import ha_slave
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.name_server import NameServer

SOON = {"registerNameServerPeriod": "200"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.1)


@asynccontextmanager
async def name_server() -> AsyncIterator[str]:
    names = NameServer()
    await names.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{names.port}"
    finally:
        await names.close()


async def send(address: str, *bodies: bytes) -> set[SendStatus]:
    async with AsyncClient(address) as client:
        await client.create_topic("t", 1)
        return {(await client.send(Message(topic="t", body=body))).status for body in bodies}


async def copied_pair(folder: Path, address: str, role: dict[str, str], *bodies: bytes) -> None:
    """Leave a master and a slave with the same messages, both stopped."""
    async with (
        serving(folder / "one", address, **role) as master,
        serving(folder / "two", address, **SLAVE) as slave,
    ):
        await follows(slave, master)
        assert await send(address, *bodies) == {SendStatus.SEND_OK}
        await follows(slave, master)


async def follows(slave: BrokerServer, master: BrokerServer) -> None:
    own = slave._replication._slave
    assert own is not None
    await eventually(lambda: own.master.address and end_of(slave) == end_of(master))


def test_what_a_synchronous_master_never_acknowledged_is_cut_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, SYNC_MASTER, b"both")
            async with serving(tmp_path / "one", address, **SYNC_MASTER):
                assert await send(address, b"alone" * 100) == {SendStatus.SLAVE_NOT_AVAILABLE}
            async with serving(tmp_path / "two", address, **MASTER) as promoted:
                await send(address, b"new", b"newer")
                async with serving(tmp_path / "one", address, **SLAVE) as old:
                    assert old._core.state.is_unverified
                    await eventually(lambda: old.role.ending)
                async with serving(tmp_path / "one", address, **SLAVE) as old:
                    await follows(old, promoted)

    run_scene(scene())
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")
    (kept,) = (tmp_path / "one" / "surplus").iterdir()
    assert b"alone" in kept.read_bytes()
    (line,) = told(caplog, "log_truncated")
    assert "1 messages from log offset" in line


def test_what_an_asynchronous_master_acknowledged_is_never_cut_and_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            async with serving(tmp_path / "one", address, **MASTER):
                assert await send(address, b"alone") == {SendStatus.SEND_OK}
            async with serving(tmp_path / "two", address, **MASTER):
                await send(address, b"new", b"newer")
                async with serving(tmp_path / "one", address, **SLAVE) as old:
                    await eventually(lambda: told(caplog, "master_lost"))
                    assert old._core.state.is_unverified
                    assert old.role.ending is None

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert "may have been acknowledged" in line
    assert "reliable-mq broker truncate --to" in line
    assert b"alone" in b"".join(log_of(tmp_path / "one").values())


def test_a_master_that_was_restored_from_a_copy_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"first")
            shutil.copytree(tmp_path / "one", tmp_path / "copy")
            async with AsyncExitStack() as stack:
                master = await stack.enter_async_context(
                    serving(tmp_path / "one", address, **MASTER)
                )
                async with serving(tmp_path / "two", address, **SLAVE, **SOON) as slave:
                    await send(address, b"second")
                    await follows(slave, master)
                    await stack.aclose()
                    async with serving(tmp_path / "copy", address, **MASTER):
                        await eventually(
                            lambda: any(
                                "differ from" in each for each in told(caplog, "master_lost")
                            )
                        )
                        assert slave._core.state.is_unverified

    run_scene(scene())
    assert b"second" in b"".join(log_of(tmp_path / "two").values())


def test_a_difference_far_before_the_end_is_found_at_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            end = 0
            async with serving(tmp_path / "one", address, **MASTER) as one:
                end = end_of(one)
                await send(address, *(b"one" * 10_000 for _ in range(20)))
            async with serving(tmp_path / "two", address, **MASTER):
                await send(address, *(b"two" * 10_000 for _ in range(30)))
                async with serving(tmp_path / "one", address, **SLAVE):
                    await eventually(lambda: told(caplog, "master_lost"))
        (line,) = told(caplog, "master_lost")
        assert f"differ from log offset {end} on" in line

    run_scene(scene())


def test_a_slave_that_is_restarted_serves_what_was_compared_before(tmp_path: Path) -> None:
    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, MASTER, b"both")
            async with serving(tmp_path / "two", address, **SLAVE) as slave:
                await asyncio.sleep(0)
                assert not slave._core.state.is_unverified

    run_scene(scene())
