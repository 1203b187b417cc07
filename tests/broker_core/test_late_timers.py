"""Timed messages that came when their second was over by the timers, though not by the clock.

The clock was set back. The timers go on behind what they have delivered, until they start again.
"""

import errno

import pytest
from tests.broker_core.broker_world import START_MS
from tests.broker_core.test_timers import DAY_MS, WorldAt, delivered, recall, send

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.testing.memory_disk import MemoryDisk

AHEAD_MS = 18_700


class Unsynced(WorldAt):
    """A broker whose log is written and never synced: no slot counts as delivered."""

    def write(self) -> bool:
        waiting, self.waiting = self.waiting, []
        ends = [turn.batch.end for turn in waiting if turn.batch]
        for turn in waiting:
            if turn.batch:
                CommitLog.write_batch(turn.batch)
            for path, text in turn.files.items():
                self.disk.write_text(path, text)
        if ends:
            self.core.stored(ends[-1], durable=False)
        if is_saved := any(turn.files for turn in waiting):
            self.core.saved()
        return bool(ends) or is_saved


def checkpoint(world: WorldAt) -> None:
    work = world.core.begin_timer_checkpoint(world.now_ms)
    if work:
        work()


@pytest.fixture
def handles() -> dict[bytes, str]:
    return {}


def killed(handles: dict[bytes, str], ahead_ms: int, begin_ms: int = START_MS) -> WorldAt:
    """Return a broker after a kill: two messages have a later slot than their own.

    Args:
        handles: get those of the messages.
        ahead_ms: so far the clock went before it was set back.
        begin_ms: the clock was set back to half a second later.
    """
    world = Unsynced(MemoryDisk(), START_MS, flushDiskType="ASYNC_FLUSH")
    world.create_topic()
    send(world, b"first", TIMER_DELAY_MS=100)
    world.pass_time(200)
    world.now_ms += ahead_ms
    world.pass_time(20, step=20)
    world.now_ms = begin_ms + 500
    for body in (b"gone", b"stays"):
        answer = send(world, body, TIMER_DELIVER_MS=begin_ms + 2_000)
        handles[body] = answer.ext_fields["recallHandle"]
    world.pass_time(20, step=20)
    checkpoint(world)
    assert delivered(world) == [b"first"]
    return WorldAt(world.disk, world.now_ms)


@pytest.fixture
def world(handles: dict[bytes, str]) -> WorldAt:
    return killed(handles, AHEAD_MS)


@pytest.mark.parametrize("lives_ms", [(), (700,), (3_000, 2_000), (11_000,)])
def test_a_recall_holds_until_a_message_comes_that_was_put_into_a_later_second(
    world: WorldAt, handles: dict[bytes, str], lives_ms: tuple[int, ...]
) -> None:
    assert recall(world, handles[b"gone"]).code == 0
    for life_ms in lives_ms:
        world.pass_time(life_ms)
        checkpoint(world)
        world = WorldAt(world.disk, world.now_ms)

    world.pass_time(AHEAD_MS + 2_000)

    assert delivered(world) == [b"first", b"stays"]


def test_slaves_are_told_of_no_progress_until_such_a_message_has_come(world: WorldAt) -> None:
    """By its own second it would be over: a slave that is promoted would not deliver it."""
    timers = world.state.timers
    world.pass_time(AHEAD_MS - 600)
    assert timers.checkpoint(world.now_ms).read_ms == START_MS + 18_000
    assert timers.checkpoint(world.now_ms).queue_offset == 0

    world.pass_time(1_000)

    assert delivered(world) == [b"first", b"gone", b"stays"]
    assert timers.checkpoint(world.now_ms).queue_offset == 3


@pytest.mark.parametrize("slots", [2, 6, 8])
@pytest.mark.parametrize("recalled_ms", [3_500, 5_500, 8_500])
def test_a_recall_finds_a_message_that_was_on_its_way_round_the_wheel(
    slots: int, recalled_ms: int
) -> None:
    """A broker is away while the message should enter the wheel again, and when it is due."""
    window = {"timerRollWindowSlot": str(slots)}
    world = WorldAt(MemoryDisk(), START_MS, **window)
    world.create_topic()
    answer = send(world, b"gone", TIMER_DELIVER_MS=START_MS + 9_500)
    send(world, b"stays", TIMER_DELIVER_MS=START_MS + 9_500)
    world.pass_time(recalled_ms, step=20)
    assert recall(world, answer.ext_fields["recallHandle"]).code == 0
    world.pass_time(100, step=20)
    checkpoint(world)
    world = WorldAt(world.disk, world.now_ms + 20_000, **window)

    world.pass_time(20_000, step=20)

    assert delivered(world) == [b"stays"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_recall_does_not_keep_a_full_wheel_for_ever(
    handles: dict[bytes, str], *, is_restarted: bool
) -> None:
    """The timers have two weeks to deliver, and the late messages come behind these."""
    world = killed(handles, 15 * DAY_MS, START_MS + 13 * DAY_MS)
    assert recall(world, handles[b"gone"]).code == 0
    world.now_ms += 2 * DAY_MS
    if is_restarted:
        world = WorldAt(world.disk, world.now_ms)

    world.pass_time(1_000)

    assert delivered(world) == [b"first", b"stays"]


@pytest.mark.parametrize("operation", [0, 1, 2, 3, 4, 5, 33, 34, 35, 36])
def test_messages_at_the_end_of_their_round_wait_for_room_on_the_disk(operation: int) -> None:
    """Each gets its slot then, and their entries need a new file of the timer log."""
    world = WorldAt(MemoryDisk(), START_MS, timerRollWindowSlot="4")
    world.create_topic()
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        send(world, body, TIMER_DELIVER_MS=START_MS + 6_500)
    world.pass_time(4_980, step=20)
    world.disk.error = errno.ENOSPC
    for _ in range(3):
        world.now_ms += 20
        world.disk.fail_at = len(world.disk.operations) + operation
        world.state.timers.run(world.now_ms)
        world.disk.fail_at = None
        checkpoint(world)

    world.pass_time(3_000, step=20)

    assert sorted(delivered(world)) == sorted(bodies)
