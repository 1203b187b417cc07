"""An election while the disk is full: brokers wait for room, and note everything then."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.failover.small_controller import small_controller
from tests.failover.test_controlled_brokers import serving, status_of_send
from tests.replication.test_diverged import name_server
from tests.replication.test_pair import log_of
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.store.disk import FileText
from reliable_mq.failover.epochs import load_epochs
from reliable_mq.message import SendStatus
from reliable_mq.runtime import controlled_broker, controller_member
from reliable_mq.runtime.file_disk import FileDisk


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(controller_member, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(controlled_broker, "_AGAIN_SECONDS", 0.05)


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path | None], None]]:
    """Let no file of a folder be written; None: there is room again."""
    full: list[Path] = []
    write = FileDisk.write_text

    def write_text(disk: FileDisk, path: str, text: FileText) -> None:
        if disk._root in full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        write(disk, path, text)

    monkeypatch.setattr(FileDisk, "write_text", write_text)

    def change(folder: Path | None) -> None:
        full[:] = [folder] if folder is not None else []

    yield change
    full.clear()


def test_a_broker_that_is_elected_with_a_full_disk_becomes_the_master_when_there_is_room(
    tmp_path: Path, fill: Callable[[Path | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(one, names, controller) as first,
            serving(two, names, controller) as second,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            assert await status_of_send(names, b"both") == SendStatus.SEND_OK
            fill(two)
            controller.elect(2)
            await eventually(lambda: "cannot start with its new role yet" in caplog.text)
            assert "the disk is full" in caplog.text
            assert (second.starts, second.role.ending) == (1, None)
            fill(None)
            await eventually(lambda: (first.starts, second.starts) == (2, 2))
            await eventually(lambda: controller.in_sync == {1, 2})
            assert await status_of_send(names, b"new") == SendStatus.SEND_OK
            await eventually(lambda: log_of(one) == log_of(two))
        assert load_epochs((two / "epochFileCheckpoint").read_text()).last == 2

    run_scene(scene())


@pytest.mark.parametrize("full", ["one", "two"])
def test_a_new_epoch_of_the_same_master_is_noted_when_there_is_room(
    full: str, tmp_path: Path, fill: Callable[[Path | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    """At the master, and at the slave, whose log would be cut at its next start without it."""

    async def scene() -> None:
        async with (
            name_server() as names,
            small_controller() as controller,
            serving(tmp_path / "one", names, controller) as first,
            serving(tmp_path / "two", names, controller) as second,
        ):
            await eventually(lambda: controller.in_sync == {1, 2})
            assert await status_of_send(names, b"both") == SendStatus.SEND_OK
            fill(tmp_path / full)
            controller.epoch += 1
            await eventually(lambda: "epoch 2 of the controller cannot be noted" in caplog.text)
            fill(None)

            files = [tmp_path / name / "epochFileCheckpoint" for name in ("one", "two")]

            async def is_noted() -> bool:
                await status_of_send(names, b"more")
                return [load_epochs(file.read_text()).last for file in files] == [2, 2]

            await eventually(is_noted)
            assert (first.starts, second.starts) == (1, 1)

    run_scene(scene())
