"""A controller that was restored from an old copy: its brokers know more than it does."""

import asyncio
from pathlib import Path

import pytest
from tests.failover.small_controller import SmallController, small_controller
from tests.failover.test_controlled_brokers import broker, serving, status_of_send
from tests.replication.test_diverged import name_server
from tests.waiting import eventually, run_scene

from reliable_mq.message import SendStatus
from reliable_mq.runtime import controller_member


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(controller_member, "HEARTBEAT_SECONDS", 0.1)


def _restore(controller: SmallController, epoch: int) -> None:
    """Let the controller know what it knew when broker 1 was the master."""
    controller.master, controller.epoch, controller.in_sync = 1, epoch, {1, 2}


@pytest.mark.parametrize("epoch", [1, 2])
def test_brokers_keep_their_roles_until_an_election_is_newer_than_theirs(
    epoch: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the old copy has elected somebody else under a number that is taken."""

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller) as first,
            serving(tmp_path / "two", names, controller) as second,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            controller.elect(2)
            await eventually(lambda: (first.starts, second.starts) == (2, 2))
            await eventually(lambda: controller.in_sync == {1, 2})

            _restore(controller, epoch)
            told = f"broker 1 is the master in epoch {epoch}, and this broker knows epoch 2"
            await eventually(lambda: caplog.text.count(told) >= 2)
            assert await status_of_send(names, b"x") == SendStatus.SEND_OK
            assert (first.starts, second.starts) == (2, 2)

            controller.epoch = 2
            controller.elect(2)
            await eventually(lambda: controller.in_sync == {1, 2})
            assert await status_of_send(names, b"y") == SendStatus.SEND_OK
            assert (controller.master, first.starts, second.starts) == (2, 2, 2)

    run_scene(scene())


def test_a_broker_that_starts_waits_until_an_election_is_newer_than_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with name_server() as names, small_controller() as controller:
            async with (
                serving(tmp_path / "one", names, controller) as first,
                serving(tmp_path / "two", names, controller) as second,
            ):
                await eventually(lambda: controller.in_sync == {1, 2})
                controller.elect(2)
                await eventually(lambda: (first.starts, second.starts) == (2, 2))
                await eventually(lambda: controller.in_sync == {1, 2})
                controller.misses = False
            _restore(controller, 1)
            started = broker(tmp_path / "two", names, controller.address)
            starting = asyncio.ensure_future(started.start())
            await eventually(lambda: "the data of the controller are an old copy" in caplog.text)
            assert not starting.done()
            controller.epoch = 2
            controller.elect(2)
            await starting
            assert await status_of_send(names, b"x") == SendStatus.SLAVE_NOT_AVAILABLE
            await started.close()

    run_scene(scene())


def test_a_controller_that_has_forgotten_a_replica_in_sync_changes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller) as first,
            serving(tmp_path / "two", names, controller),
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            del controller.addresses[2]
            await eventually(lambda: first._member.replicas.keys() == {1})
            assert await status_of_send(names, b"x") == SendStatus.SEND_OK

    run_scene(scene())
