"""Timed messages over crashes at any write: none early, none lost, none twice.

A clean stop lies in the middle of each life, so that a crash can also come in the middle of that.
"""

from random import Random

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, send_header
from tests.broker_core.crashing import DEATHS, deaths, some, whole
from tests.broker_core.test_timers import WorldAt, a_world, delivered, send

from reliable_mq.broker_core.store.timer_wheel import Slot, TimerWheel
from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk
from reliable_mq.wire.codes import RequestCode

STEPS = 60
STEP_MS = 70
DELAYS_MS = (30, 90, 400, 999, 1_000, 1_700, 2_600, 7_300)
CRASHES = 25


class Life:
    """What clients of a broker know: what was sent, what was answered, what was taken back."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.now_ms = START_MS
        self.world: BrokerWorld | None = None
        self.due_ms: dict[bytes, int] = {}
        self.answered: set[bytes] = set()
        self.maybe_recalled: set[bytes] = set()
        self.recalled: set[bytes] = set()

    def open(self, downtime_ms: int = 0) -> BrokerWorld:
        if self.world is not None:
            self.now_ms = self.world.now_ms
        self.now_ms += downtime_ms
        self.world = WorldAt(self.disk, self.now_ms, timerRollWindowSlot="4")
        return self.world

    def run(self) -> None:
        """Send, take back and let time pass, with a stop in the middle."""
        for half in range(2):
            world = self.open()
            if not half:
                world.create_topic()
            for step in range(STEPS // 2):
                self.send(world, b"%d-%d" % (half, step), DELAYS_MS[step % len(DELAYS_MS)], step)
                world.pass_time(STEP_MS, step=35)
                work = world.core.begin_timer_checkpoint(world.now_ms) if step % 6 == 5 else None
                if work:
                    work()
            world.stop()

    def send(self, world: BrokerWorld, body: bytes, delay_ms: int, step: int) -> None:
        self.due_ms[body] = world.now_ms + delay_ms
        wish = {"TIMER_DELIVER_MS": str(world.now_ms + delay_ms)}
        if step % 2:
            wish = {"TIMER_DELAY_MS": str(delay_ms)}
        answer = world.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0, **wish), body)
        assert answer.code == 0
        self.answered.add(body)
        handle = answer.ext_fields["recallHandle"]
        if delay_ms > 2_000 and step % 3 == 0:
            self.maybe_recalled.add(body)
            ext = {"topic": TOPIC, "recallHandle": handle}
            assert world.ask(RequestCode.RECALL_MESSAGE, ext).code == 0
            self.recalled.add(body)

    def assert_kept(self, downtime_ms: int) -> None:
        """Open again, wait for all that is due, and compare."""
        world = self.open(downtime_ms)
        world.pass_time(max(DELAYS_MS) + 1_000, step=35)
        records = world.records(TOPIC)
        bodies = [record.body for record in records]
        assert len(set(bodies)) == len(bodies), "a message came twice"
        assert self.answered - set(bodies) <= self.maybe_recalled, "a message was lost"
        assert not self.recalled & set(bodies), "a message came that was taken back"
        for record in records:
            assert record.store_time_ms >= self.due_ms[record.body], "a message came early"


@pytest.fixture(scope="module")
def operations() -> int:
    """How many changes of the disk a life makes."""
    life = whole(Life)
    count = len(life.disk.operations)
    life.assert_kept(0)
    assert life.recalled
    return count


@pytest.mark.parametrize("seed", range(2))
@DEATHS
def test_every_timer_comes_once_whichever_step_of_the_disk_is_the_last(
    seed: int, is_power_lost: bool, operations: int
) -> None:
    assert list(deaths(Life, some(operations, CRASHES), seed, is_power_lost=is_power_lost))


FIRST_FILE = "timerlog/00000000000000000000"
DUE_PLACE = 44  # in an entry: where its millisecond stands


class NothingReached(Random):
    """A power loss that leaves of what was not synced nothing but the names."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


def checkpoint(world: BrokerWorld) -> None:
    work = world.core.begin_timer_checkpoint(world.now_ms)
    assert work is not None
    work()


def send_and_take_up(world: BrokerWorld, numbers: range) -> None:
    for number in numbers:
        send(world, b"%d" % number, TIMER_DELIVER_MS=START_MS + 3_100 + number)
    world.pass_time(20, step=20)


def assert_each_comes_once(world: BrokerWorld, count: int) -> None:
    world.pass_time(5_000, step=50)
    assert delivered(world) == [b"%d" % number for number in range(count)]
    for record in world.records(TOPIC):
        assert record.store_time_ms >= START_MS + 3_100 + int(record.body)


def test_an_entry_of_which_a_power_loss_took_the_end_is_not_believed() -> None:
    world = a_world()
    send_and_take_up(world, range(1))
    log_file = world.disk.open(FIRST_FILE, 4096)
    log_file.write(DUE_PLACE + 4, (bytes(4),))  # where a sector of the medium begins

    assert_each_comes_once(WorldAt(world.disk, START_MS + 2_000), 1)


def test_entries_that_outlived_the_process_are_not_taken_for_synced() -> None:
    world = a_world()
    send_and_take_up(world, range(3))
    again = WorldAt(world.disk, START_MS)
    again.pass_time(20, step=20)
    checkpoint(again)
    world.disk.lose_power(NothingReached())

    assert_each_comes_once(WorldAt(world.disk, START_MS), 3)


@pytest.mark.parametrize("missing", [0, 4096])
def test_a_new_file_of_the_timer_log_may_be_lost_before_a_later_one(missing: int) -> None:
    world = a_world()
    send_and_take_up(world, range(200))
    world.disk.remove(f"timerlog/{missing:020d}")

    assert_each_comes_once(WorldAt(world.disk, START_MS), 200)


def test_a_wheel_that_is_ahead_of_the_note_is_set_back() -> None:
    world = a_world()
    send_and_take_up(world, range(1))
    checkpoint(world)
    send_and_take_up(world, range(1, 3))
    world.disk.stop_before = len(world.disk.operations) + 3
    with pytest.raises(MachineStopped) as stop:
        checkpoint(world)
    assert stop.value.args[0].path == "config/timercheck"
    assert TimerWheel(world.disk, 1_000).slot(START_MS + 3_000) == Slot(0, 104, 3)
    world.disk.kill()

    world.disk.stop_before = None
    again = WorldAt(world.disk, START_MS)
    assert TimerWheel(world.disk, 1_000).slot(START_MS + 3_000) == Slot(0, 0, 1)
    again.disk.lose_power(NothingReached())

    assert_each_comes_once(WorldAt(world.disk, START_MS), 3)


def test_what_came_before_two_crashes_does_not_come_again() -> None:
    """The first start finds the delivery in the log; its checkpoint must let the second find it."""
    world = a_world()
    for number in range(2):
        send(world, b"%d" % number, TIMER_DELIVER_MS=START_MS + 3_100 + number * 800)
    world.pass_time(3_300, step=20)
    assert delivered(world) == [b"0"]
    again = WorldAt(world.disk, world.now_ms)
    again.pass_time(20, step=20)
    checkpoint(again)

    again = WorldAt(world.disk, again.now_ms)
    again.pass_time(2_000, step=20)

    assert delivered(again) == [b"0", b"1"]
