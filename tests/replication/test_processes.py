"""Processes: a slave starts again to cut its log, and a former master ends with one line."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.replication.test_diverged import copied_pair, name_server, send
from tests.replication.test_pair import MASTER, SYNC_MASTER, log_of, serving
from tests.waiting import eventually, run_scene

from reliable_mq.message import SendStatus

SIZES = ("--set", "mappedFileSizeCommitLog=1048576", "--set", "maxMessageSize=100000")


@asynccontextmanager
async def broker(store: Path, address: str, *settings: str) -> AsyncIterator[Process]:
    options = [word for each in settings for word in ("--set", each)]
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reliable_mq.cli.main", "broker", "--store", str(store)),
        *("--port", "0", "--namesrv", address, *SIZES, *options),
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        await started.communicate()


def test_a_former_master_cuts_its_log_and_follows_in_the_same_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    async def scene() -> None:
        async with name_server() as address:
            await copied_pair(tmp_path, address, SYNC_MASTER, b"both")
            async with serving(one, address, **SYNC_MASTER):
                assert await send(address, b"alone") == {SendStatus.SLAVE_NOT_AVAILABLE}
            async with serving(two, address, **MASTER):
                await send(address, b"new")
                async with broker(one, address, "brokerRole=SYNC_MASTER") as refused:
                    _out, said = await refused.communicate()
                    assert refused.returncode == 1
                    last = said.decode().splitlines()[-1]
                    assert "the master of broker-a is" in last
                    assert "start it with brokerRole=SLAVE" in last
                async with broker(one, address, "brokerRole=SLAVE", "brokerId=1") as slave:
                    await eventually((one / "surplus").exists, seconds=30)
                    await eventually(lambda: log_of(one) == log_of(two), seconds=30)
                    assert slave.returncode is None, "the process has not ended"

    run_scene(scene())
