"""Timed messages over crashes at any write: none early, none lost, none twice.

A clean stop lies in the middle of each life, so that a crash can also come in the middle of that.
"""

from random import Random

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, send_header
from tests.broker_core.test_timers import WorldAt

from reliable_mq.testing.memory_disk import MemoryDisk, Stopped
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
        self.due_ms: dict[bytes, int] = {}
        self.answered: set[bytes] = set()
        self.maybe_recalled: set[bytes] = set()
        self.recalled: set[bytes] = set()

    def open(self) -> BrokerWorld:
        return WorldAt(self.disk, self.now_ms, timerRollWindowSlot="4")

    def run(self) -> None:
        """Send, take back and let time pass, with a stop in the middle."""
        for half in range(2):
            world = self.open()
            if not half:
                world.create_topic()
            for step in range(STEPS // 2):
                self.now_ms = world.now_ms
                self.send(world, b"%d-%d" % (half, step), DELAYS_MS[step % len(DELAYS_MS)], step)
                world.pass_time(STEP_MS, step=35)
                work = world.core.begin_timer_checkpoint(world.now_ms) if step % 6 == 5 else None
                if work:
                    work()
            self.now_ms = world.now_ms
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
        self.now_ms += downtime_ms
        world = self.open()
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
    life = Life(MemoryDisk())
    life.run()
    count = len(life.disk.operations)
    life.assert_kept(0)
    assert life.recalled
    return count


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power loss"])
def test_every_timer_comes_once_after_a_crash_at_any_write(
    seed: int, is_power_lost: bool, operations: int
) -> None:
    random = Random(seed)
    for number in random.sample(range(operations), CRASHES):
        disk = MemoryDisk()
        disk.stop_before, disk.torn = number, random.choice((0, random.randint(1, 700)))
        life = Life(disk)
        with pytest.raises(Stopped):
            life.run()
        if is_power_lost:
            disk.lose_power(random)
        else:
            disk.kill()
        life.assert_kept(random.choice((0, 300, 5_000)))
