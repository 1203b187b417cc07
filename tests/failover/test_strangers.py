"""Who names a number at the port for slaves that is not his own acknowledges nothing with it.

The protocol has no proof of a number. Access to the port is limited by `haAllowedAddresses` and
`haAllowedNames`; this is what holds without them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.failover.small_controller import small_controller
from tests.failover.test_controlled_brokers import serving, status_of_send
from tests.replication.test_diverged import name_server
from tests.replication.test_pair import held_syncs, slaves_of
from tests.waiting import eventually, run_scene

from reliable_mq.failover.switch_frames import (
    EpochTransfer,
    Hello,
    MasterFrames,
    encode_hello,
    encode_report,
)
from reliable_mq.message import SendStatus
from reliable_mq.runtime import controller_member
from reliable_mq.runtime.controlled_broker import ControlledBroker

QUICK = {"slaveTimeout": "400"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(controller_member, "HEARTBEAT_SECONDS", 0.1)


@asynccontextmanager
async def stranger(master: ControlledBroker, number: int) -> AsyncIterator[None]:
    """Follow a master under a number, and report all that comes as stored."""
    place = master._server._replication.master
    assert place is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    before = len(place.slaves)

    async def report_forever() -> None:
        frames = MasterFrames()
        while data := await reader.read(1 << 16):
            for each in frames.feed(data):
                if isinstance(each, EpochTransfer):
                    offset, part = each.transfer
                    writer.write(encode_report(offset + len(part)))

    writer.write(encode_hello(Hello(number)) + encode_report(0))
    reporting = asyncio.ensure_future(report_forever())
    try:
        await eventually(lambda: len(slaves_of(master._server)) > before)
        yield
    finally:
        writer.close()
        await reporting


async def becomes_acknowledged(names: str) -> None:
    """Send until both brokers have a message: a disk may take longer than `QUICK` allows."""

    async def is_acknowledged() -> bool:
        return await status_of_send(names, b"both") == SendStatus.SEND_OK

    await eventually(is_acknowledged)


def test_the_number_of_a_slave_that_is_here_acknowledges_nothing_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller, **QUICK) as first,
            serving(tmp_path / "two", names, controller, **QUICK) as second,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            await becomes_acknowledged(names)
            async with stranger(first, 2):
                with held_syncs(second._server):
                    assert await status_of_send(names, b"one") == SendStatus.FLUSH_SLAVE_TIMEOUT
                await becomes_acknowledged(names)

    run_scene(scene())


def test_a_number_that_the_controller_does_not_know_counts_nowhere(tmp_path: Path) -> None:
    """A set with it would be refused, and then the set could not be changed at all."""

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller, **QUICK) as first,
            stranger(first, 99),
        ):
            assert await status_of_send(names, b"x") == SendStatus.SLAVE_NOT_AVAILABLE
            async with serving(tmp_path / "two", names, controller, **QUICK):
                await eventually(lambda: controller.in_sync == {1, 2})
                await becomes_acknowledged(names)
            assert 99 not in controller.asked_for

    run_scene(scene())
