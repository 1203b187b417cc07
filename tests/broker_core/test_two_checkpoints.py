"""Two checkpoints under way while the log's oldest files go: the medium learns of it first."""

import errno
from collections.abc import Callable

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.broker_core.cleaning import begin_cleaning

from reliable_mq.broker_core.store.disk import FileText
from reliable_mq.broker_core.store.marks import StoreMark
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.progress import PATH
from reliable_mq.broker_core.store.retention import DiskSurvey
from reliable_mq.testing.memory_disk import MemoryDisk

Job = Callable[[], None]


class NoRoomForNotes(MemoryDisk):
    """A disk that may have no room for the note."""

    is_full = False

    def write_text(self, path: str, text: FileText) -> None:
        if self.is_full and path == PATH:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().write_text(path, text)


def with_old_files(disk: MemoryDisk) -> BrokerWorld:
    """Return a broker whose log has four files, of which all but the last may go."""
    world = BrokerWorld(disk, fileReservedTime="1")
    world.create_topic()
    while len(world.state.store.log.segment_starts) < 4:
        world.send(b"x" * 30_000)
    world.state.store.checkpoint()
    world.send(b"last")
    world.state.retention.begin_manual()
    world.now_ms += 7_200_000
    return world


def clean(world: BrokerWorld) -> Job:
    work = begin_cleaning(world.core, DiskSurvey(0.1, [0, 0, 0]), world.reading())
    assert work
    return work


def assert_starts(world: BrokerWorld) -> None:
    world.disk.kill()
    assert [r.body for r in BrokerWorld(world.disk).records(TOPIC)][-1] == b"last"


def segments(world: BrokerWorld) -> int:
    return sum(path.startswith("commitlog/") for path in world.disk.paths())


def test_a_checkpoint_that_ends_just_after_files_were_forgotten_does_not_stand_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_old_files(MemoryDisk())
    store = world.state.store
    earlier = store.begin_checkpoint()
    begin_checkpoint = MessageStore.begin_checkpoint

    def begin_after_the_earlier(store: MessageStore, mark: StoreMark | None = None) -> Job:
        earlier()
        return begin_checkpoint(store, mark)

    monkeypatch.setattr(MessageStore, "begin_checkpoint", begin_after_the_earlier)
    work = clean(world)
    monkeypatch.undo()
    work()

    assert world.file(PATH)["logStart"] == store.log.start > 0
    assert segments(world) < 4
    assert_starts(world)


def test_no_file_goes_when_an_earlier_checkpoint_was_noted_and_the_later_one_found_no_room() -> (
    None
):
    disk = NoRoomForNotes()
    world = with_old_files(disk)
    earlier = world.state.store.begin_checkpoint()
    work = clean(world)
    earlier()
    before = segments(world)
    disk.is_full = True
    work()
    disk.is_full = False

    assert segments(world) == before
    assert world.file(PATH)["logStart"] == 0
    assert_starts(world)
