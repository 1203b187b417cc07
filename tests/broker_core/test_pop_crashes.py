"""Popped messages over crashes at any write: none lost, none early, none after its acknowledgement.

A clean stop lies in the middle of each life, so that a crash can also come in the middle of that.
"""

from random import Random

import pytest
from tests.broker_core.broker_world import START_MS
from tests.broker_core.pop_world import PopWorld, Taken

from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk

STEPS = 40
STEP_MS = 140
INVISIBLE_MS = (700, 1_500, 3_100)
LAST_MS = 60_000
CRASHES = 15


class PopWorldAt(PopWorld):
    """A broker that starts at a time of its own."""

    def __init__(self, disk: MemoryDisk, now_ms: int, **properties: str) -> None:
        self._start_ms = now_ms
        super().__init__(disk, **properties)

    def start(self) -> None:
        self.now_ms = self._start_ms
        super().start()


class PopLife:
    """What the clients of a broker know."""

    def __init__(self, disk: MemoryDisk, seed: int) -> None:
        self.disk = disk
        self.random = Random(seed)
        self.now_ms = START_MS
        self.sent: set[bytes] = set()
        self.hidden_ms: dict[bytes, int] = {}
        self.held: dict[bytes, Taken] = {}
        self.maybe_twice: set[bytes] = set()  # a crash may keep one half of an extension
        self.maybe_acked: set[bytes] = set()
        self.acked: set[bytes] = set()

    def open(self) -> PopWorldAt:
        return PopWorldAt(self.disk, self.now_ms, flushConsumerOffsetInterval="300")

    def run(self) -> None:
        """Send, pop, acknowledge, extend and let time pass, with a stop in the middle."""
        for half in range(2):
            world = self.open()
            for step in range(STEPS // 2):
                self.now_ms = world.now_ms
                body = b"%d-%d" % (half, step)
                world.send(body)
                self.sent.add(body)
                self.pop(world, self.random.choice(INVISIBLE_MS), self.random.randint(1, 3))
                self.settle(world)
                world.pass_time(STEP_MS, step=35)
                work = world.core.begin_timer_checkpoint(world.now_ms) if step % 6 == 5 else None
                if work:
                    work()
            self.now_ms = world.now_ms
            world.stop()

    def pop(self, world: PopWorldAt, invisible_ms: int, count: int) -> list[bytes]:
        messages = world.pop(invisibleTime=invisible_ms, maxMsgNums=count)
        for message in messages:
            body = message.body
            assert body not in self.acked, f"{body!r} came after its acknowledgement"
            is_early = world.now_ms < self.hidden_ms.get(body, 0)
            assert not is_early or body in self.maybe_twice, f"{body!r} came early"
            self.hidden_ms[body] = world.now_ms + invisible_ms
            self.held[body] = message
        return [message.body for message in messages]

    def settle(self, world: PopWorldAt) -> None:
        """Acknowledge or extend some of what is held."""
        for body, message in list(self.held.items()):
            choice = self.random.random()
            is_held = world.now_ms < self.hidden_ms[body]
            if choice < 0.35 and not body.endswith((b"0", b"5")):
                self.maybe_acked.add(body)
                assert world.ack(message).code == 0
                if is_held:
                    self.acked.add(body)
                del self.held[body]
            elif choice < 0.5 and is_held:
                self.extend(world, message)
            elif not is_held:
                del self.held[body]

    def extend(self, world: PopWorldAt, message: Taken) -> None:
        body, more_ms = message.body, self.random.choice(INVISIBLE_MS)
        until_ms = world.now_ms + more_ms
        self.hidden_ms[body] = min(self.hidden_ms[body], until_ms)  # the reply may be lost
        self.maybe_twice.add(body)
        answer = world.extend(message, more_ms)
        assert answer.code == 0
        self.maybe_twice.discard(body)
        self.hidden_ms[body] = until_ms
        handle = message.handle._replace(
            start_offset=message.record.queue_offset,
            popped_ms=int(answer.ext_fields["popTime"]),
            invisible_ms=int(answer.ext_fields["invisibleTime"]),
        )
        self.held[body] = message._replace(handle=handle)

    def assert_kept(self, downtime_ms: int) -> int:
        """Open again, wait until all is back, and compare; return how many came."""
        self.now_ms += downtime_ms
        world = self.open()
        seen: set[bytes] = set()
        for _ in range((max(INVISIBLE_MS) + 2_000) // 100):
            seen.update(self.pop(world, LAST_MS, 32))
            world.pass_time(100, step=50)
        lost = self.sent - seen - self.maybe_acked
        assert not lost, f"{lost} never came back"
        return len(seen)


@pytest.fixture(scope="module")
def operations() -> int:
    """How many changes of the disk a life makes."""
    life = PopLife(MemoryDisk(), 0)
    life.run()
    count = len(life.disk.operations)
    assert life.assert_kept(0)
    assert life.acked
    return count


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power loss"])
def test_every_message_is_kept_over_a_crash_at_any_write(
    seed: int, is_power_lost: bool, operations: int
) -> None:
    random = Random(seed)
    for number in random.sample(range(operations - 20), CRASHES):
        disk = MemoryDisk()
        disk.stop_before, disk.torn = number, random.choice((0, random.randint(1, 700)))
        life = PopLife(disk, seed)
        with pytest.raises(MachineStopped):
            life.run()
        if is_power_lost:
            disk.lose_power(random)
        else:
            disk.kill()
        life.assert_kept(random.choice((0, 300, 5_000)))
