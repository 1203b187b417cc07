"""Starts of brokers under a controller: what it is told, and what a start that fails leaves."""

import asyncio
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from tests.failover.small_controller import small_controller
from tests.failover.test_controlled_brokers import broker, serving, status_of_send
from tests.replication.test_diverged import name_server
from tests.waiting import Budget, eventually, run_scene

from reliable_mq.errors import FormerMaster
from reliable_mq.failover.epochs import Epoch, load_epochs
from reliable_mq.message import SendStatus
from reliable_mq.runtime import controlled_broker, controller_member
from reliable_mq.runtime.controlled_broker import ControlledBroker
from reliable_mq.runtime.fence import Fence
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(controller_member, "HEARTBEAT_SECONDS", 0.1)


def test_a_master_that_starts_again_before_the_controller_misses_it_goes_on(
    tmp_path: Path,
) -> None:
    one = tmp_path / "one"
    alone = {"inSyncReplicas": "1"}

    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            controller.misses = False
            for body in (b"before", b"after"):
                async with serving(one, names, controller, **alone):
                    assert await status_of_send(names, body) == SendStatus.SEND_OK
            assert controller.epoch == 1
        assert load_epochs((one / "epochFileCheckpoint").read_text()).all == (Epoch(1, 0),)

    run_scene(scene())


def test_the_controller_knows_the_address_that_others_can_reach(tmp_path: Path) -> None:
    """A broker in a container listens at every address, and brokerIP1 is the one to tell."""

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller, brokerIP1="127.0.0.2") as first,
        ):
            port = first.address.rpartition(":")[2]
            assert controller.addresses == {1: f"127.0.0.2:{port}"}

    run_scene(scene())


def test_a_set_of_the_controller_that_cannot_be_read_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[Exception] = []

    def note(error: Exception) -> NoReturn:
        broken.append(error)
        raise error

    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            made = broker(tmp_path / "one", names, controller.address)
            first = ControlledBroker(made._options, note)
            await first.start()
            async with serving(tmp_path / "two", names, controller):
                await eventually(lambda: controller.in_sync == {1, 2})
                controller.says = Command(0, body=b'{"syncStateSet": 7}')
            await eventually(lambda: "does not take [1] as the replicas in sync" in caplog.text)
            controller.says = None
            await eventually(lambda: controller.in_sync == {1})
            await first.close()

    run_scene(scene())
    assert broken == []


def test_a_start_that_another_master_ends_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker under a controller tries again every half second: a leak would not end."""
    monkeypatch.setattr(controlled_broker, "_AGAIN_SECONDS", 0.01)
    left = [FormerMaster("the master is elsewhere")] * 5

    async def check(_fence: Fence) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(Fence, "check", check)

    def writers() -> int:
        return sum(each.name == "reliable-mq-writer" for each in threading.enumerate())

    before = writers()

    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            own = writers()
            async with serving(tmp_path / "one", names, controller):
                assert not left
                assert writers() == own + 1

    run_scene(scene())
    assert writers() == before


def test_a_controller_that_is_away_delays_no_heartbeat_to_another_one(tmp_path: Path) -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        silent = await asyncio.start_server(never, "127.0.0.1", 0)
        at = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with name_server() as names, small_controller() as controller:
            budget = Budget(controller_member._TIMEOUT)
            started = broker(tmp_path / "one", names, f"{controller.address};{at}")
            await started.start()
            controller.asked.clear()
            await eventually(lambda: controller.asked.count(RequestCode.BROKER_HEARTBEAT) >= 5)
            assert budget.is_left()
            await started.close()
        silent.close()

    run_scene(scene())
