"""Popped messages over crashes at any write: none lost, none early, none after its acknowledgement.

A clean stop lies in the middle of each life, so that a crash can also come in the middle of that.
"""

from functools import partial
from random import Random

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC
from tests.broker_core.crashing import DEATHS, deaths, some, whole
from tests.broker_core.pop_world import PopWorld, Taken

from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.pop_answer import batch_ack_body

STEPS = 40
STEP_MS = 140
INVISIBLE_MS = (700, 1_500, 3_100)
LAST_MS = 60_000
CRASHES = 15
REMOVAL_SIZES = (4, 8)  # of a change in an entry of the timer log


class PopWorldAt(PopWorld):
    """A broker that starts at a time of its own."""

    def __init__(self, disk: MemoryDisk, now_ms: int, **properties: str) -> None:
        self._start_ms = now_ms
        super().__init__(disk, **properties)

    def start(self) -> None:
        self.now_ms = self._start_ms
        super().start()


class Life:
    """A broker that lives more than once over the same disk."""

    def __init__(self, disk: MemoryDisk, seed: int = 0) -> None:
        self.disk = disk
        self.random = Random(seed)
        self.now_ms = START_MS
        self.world: PopWorldAt | None = None

    def open(self, downtime_ms: int = 0) -> PopWorldAt:
        if self.world is not None:
            self.now_ms = self.world.now_ms
        self.now_ms += downtime_ms
        self.world = PopWorldAt(self.disk, self.now_ms, flushConsumerOffsetInterval="300")
        return self.world


class PopLife(Life):
    """What the clients of a broker know."""

    def __init__(self, disk: MemoryDisk, seed: int = 0) -> None:
        super().__init__(disk, seed)
        self.sent: set[bytes] = set()
        self.hidden_ms: dict[bytes, int] = {}
        self.held: dict[bytes, Taken] = {}
        self.maybe_twice: set[bytes] = set()  # a crash may keep one half of an extension
        self.maybe_acked: set[bytes] = set()
        self.acked: set[bytes] = set()

    def run(self) -> None:
        """Send, pop, acknowledge, extend and let time pass, with a stop in the middle."""
        for half in range(2):
            world = self.open()
            for step in range(STEPS // 2):
                body = b"%d-%d" % (half, step)
                world.send(body)
                self.sent.add(body)
                self.pop(world, self.random.choice(INVISIBLE_MS), self.random.randint(1, 3))
                self.settle(world)
                world.pass_time(STEP_MS, step=35)
                work = world.core.begin_timer_checkpoint(world.now_ms) if step % 6 == 5 else None
                if work:
                    work()
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
        self.settle_many(world)
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

    def settle_many(self, world: PopWorldAt) -> None:
        """Acknowledge some messages with one request."""
        some = [
            body
            for body in self.held
            if world.now_ms < self.hidden_ms[body] and body.endswith((b"1", b"7"))
        ]
        if len(some) < 2 or self.random.random() < 0.3:
            return
        self.maybe_acked.update(some)
        handles = [(TOPIC, self.held[body].handle) for body in some]
        body = batch_ack_body(GROUP, "b", handles)
        assert world.ask(Ask.BATCH_ACK_MESSAGE, {}, body).code == 0
        self.acked.update(some)
        for each in some:
            del self.held[each]

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
        world = self.open(downtime_ms)
        seen: set[bytes] = set()
        for _ in range((max(INVISIBLE_MS) + 2_000) // 100):
            seen.update(self.pop(world, LAST_MS, 32))
            world.pass_time(100, step=50)
        lost = self.sent - seen - self.maybe_acked
        assert not lost, f"{lost} never came back"
        return len(seen)


class OrderedLife(Life):
    """What the clients of a queue know that is popped in order."""

    def __init__(self, disk: MemoryDisk, seed: int = 0) -> None:
        super().__init__(disk, seed)
        self.sent: list[bytes] = []
        self.held: list[Taken] = []
        self.hidden_ms = 0
        self.answered = 0  # so many were stored
        self.acked = 0  # so many from the first one on
        self.maybe_acked = 0

    def run(self) -> None:
        """Send, pop in order, acknowledge most, and stop in the middle."""
        for half in range(2):
            world = self.open()
            for step in range(STEPS // 2):
                self.sent.append(b"%d-%d" % (half, step))
                world.send(self.sent[-1])
                self.answered = len(self.sent)
                self.pop(world, self.random.randint(1, 4))
                for _ in range(self.random.randint(0, 2)):
                    self.acknowledge(world)
                world.pass_time(STEP_MS, step=35)
            world.stop()

    def pop(self, world: PopWorldAt, count: int) -> None:
        time_ms = self.random.choice(INVISIBLE_MS)
        is_hidden = world.now_ms < self.hidden_ms
        end_ms = world.now_ms + time_ms
        messages = world.pop(order="true", invisibleTime=time_ms, maxMsgNums=count)
        if not messages:
            return
        assert not is_hidden, "messages came while those before them are in flight"
        first = self.sent.index(messages[0].body)
        assert self.acked <= first <= self.maybe_acked, "a message was skipped, or came again"
        wanted = self.sent[first : first + len(messages)]
        assert [message.body for message in messages] == wanted, "messages are out of order"
        self.held, self.hidden_ms = messages, end_ms
        self.acked = self.maybe_acked = first

    def acknowledge(self, world: PopWorldAt) -> None:
        """Acknowledge the first message that is held; if no answer comes, it is held still."""
        if not self.held or world.now_ms >= self.hidden_ms:
            return
        self.maybe_acked = self.acked + 1
        if len(self.held) == 1:
            self.hidden_ms = 0  # the next ones may come, also if the answer is lost
        assert world.ack(self.held[0]).code == 0
        del self.held[0]
        self.acked = self.maybe_acked

    def assert_kept(self, downtime_ms: int) -> int:
        """Open again, and consume the rest; return how many came."""
        world = self.open(downtime_ms)
        begin = self.acked
        for _ in range((max(INVISIBLE_MS) + 2_000) // 100):
            self.pop(world, 32)
            while self.held and world.now_ms < self.hidden_ms:
                self.acknowledge(world)
            world.pass_time(100, step=50)
        assert self.acked >= self.answered, "a message is lost"
        return self.acked - begin


def made(kind: str, disk: MemoryDisk, seed: int = 0) -> PopLife | OrderedLife:
    """Return a life of a kind."""
    return PopLife(disk, seed) if kind == "in any order" else OrderedLife(disk, seed)


KINDS = ("in any order", "in order")


@pytest.fixture(scope="module")
def operations() -> dict[str, int]:
    """How many changes of the disk a life makes."""
    counts = {}
    for name in KINDS:
        life = whole(partial(made, name))
        counts[name] = len(life.disk.operations)
        assert life.acked
        assert life.assert_kept(0)
    return counts


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
@DEATHS
def test_every_popped_message_is_kept_whichever_step_of_the_disk_is_the_last(
    seed: int, kind: str, is_power_lost: bool, operations: dict[str, int]
) -> None:
    make = partial(made, kind, seed=seed)
    numbers = some(operations[kind] - 20, CRASHES)
    assert list(deaths(make, numbers, seed, is_power_lost=is_power_lost))


@DEATHS
def test_a_stop_that_ends_in_its_middle_brings_nothing_back_that_was_acknowledged(
    is_power_lost: bool,
) -> None:
    """It removes checkpoints from the wheel before their acknowledgements."""
    changes = whole(PopLife).disk.operations
    numbers = [
        number
        for number, change in enumerate(changes)
        if change.path.startswith("timerlog/") and change.size in REMOVAL_SIZES
    ]
    some_of_them = [numbers[at] for at in some(len(numbers), 25)]
    assert list(deaths(PopLife, some_of_them, 0, is_power_lost=is_power_lost))
