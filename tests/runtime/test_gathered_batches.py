"""What comes while a batch is on its way to the slaves is written together."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from tests.runtime.test_log_writer import GatedSegment, fail, turn
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.runtime import gathered_batches
from reliable_mq.runtime.gathered_batches import GatheredBatches
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command

STORED = encode_answer(Command(code=0, opaque=1))


class PromptDisk:
    """Syncs at once."""

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        for file in files:
            file.sync()
        done()
        return True

    def close(self) -> None:
        pass


class SlowDisk(PromptDisk):
    """Syncs when it is told to."""

    def __init__(self) -> None:
        self._done: list[Callable[[], None]] = []

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        def end() -> None:
            PromptDisk.start(self, files, done)

        self._done.append(end)
        return True

    def end_sync(self) -> None:
        """End the sync that has begun."""
        self._done.pop(0)()


class Master:
    """The log of a synchronous master, and a slave that reports when it is told to."""

    def __init__(self, disk: PromptDisk | None = None) -> None:
        self.answers = ReplicatedAnswers(3_000)
        self.segment = GatedSegment()
        self.now = 0.0
        self.end = 0
        self.sent: list[int] = []  # where each transfer ends
        self.writer = LogWriter(
            MemoryDisk(),
            0,
            self._stored,
            disk or PromptDisk(),
            on_written=self._written,
            on_broken=fail,
        )
        self.gathered = self.writer.gathered = GatheredBatches(
            self.answers, partial(self.writer.go_on, at_once=True), lambda: self.now
        )
        self.report(0)

    def _stored(self, end: int, _is_durable: bool) -> None:
        self.answers.release(end)

    def _written(self, batch: LogBatch) -> None:
        self.sent.append(batch.end)

    def take(self, data: bytes, *, is_answered: bool = False) -> None:
        """Store a turn with one message, whose sender may wait for its answer."""
        begin, self.end = self.end, self.end + len(data)
        if is_answered:
            self.answers.when_stored(1, self.end, STORED)
            self.answers.end_sends(self.end)
        self.writer.write_turn(turn(self.segment, begin, data))
        self.gathered.invariants()

    def take_all(self, *messages: bytes) -> None:
        """Store turns with one message each, whose senders wait for their answers."""
        for data in messages:
            self.take(data, is_answered=True)

    def report(self, offset: int, *, has_slaves: bool = True) -> None:
        self.answers.acknowledge(offset, has_slaves=has_slaves)
        self.writer.go_on()
        self.gathered.invariants()

    @property
    def log(self) -> bytes:
        return b"".join(self.segment.written)


def test_what_comes_while_a_batch_is_on_its_way_is_one_write_one_sync_and_one_transfer() -> None:
    async def scene() -> None:
        master = Master()
        for data in (b"a", b"b", b"c", b"d"):
            master.take(data)
        assert (master.sent, master.log, master.segment.syncs) == ([1], b"a", 1)
        master.report(1)
        assert (master.sent, master.log, master.segment.syncs) == ([1, 4], b"abcd", 2)
        master.take(b"e")
        master.report(3)
        assert master.sent == [1, 4], "a report of a part lets nothing go on"
        master.report(4)
        assert master.sent == [1, 4, 5]
        master.report(5)
        master.take(b"f")
        assert master.sent == [1, 4, 5, 6], "nothing is on its way: it is written at once"
        master.writer.close()

    run_scene(scene())


def test_a_batch_goes_on_when_the_slave_is_lost() -> None:
    async def scene() -> None:
        master = Master()
        master.take(b"a")
        master.take(b"b")
        master.report(0, has_slaves=False)
        assert master.log == b"ab"
        for data in (b"c", b"d"):
            master.take(data)
        assert master.sent == [1, 2, 3, 4], "nobody is waited for"
        master.writer.close()

    run_scene(scene())


def test_a_batch_goes_on_when_its_replies_are_given_up() -> None:
    async def scene() -> None:
        master = Master()
        master.take(b"a")
        master.take(b"b")
        master.answers.expire(1_000)
        master.answers.expire(10_000)
        master.writer.go_on()
        assert master.log == b"ab"
        master.writer.close()

    run_scene(scene())


def test_nothing_is_gathered_for_a_slave_that_is_far_away() -> None:
    async def scene() -> None:
        master = Master()
        for _ in range(10):  # the usual time is not that of one batch
            master.take(b"x")
            master.now += 0.006
            master.report(master.end)
        sent = len(master.sent)
        master.take(b"y")
        master.take(b"z")
        assert len(master.sent) == sent + 2
        for _ in range(50):
            master.report(master.end)
            master.take(b"x")
            master.now += 0.001
        sent = len(master.sent)
        master.take(b"y")
        master.take(b"z")
        assert len(master.sent) == sent, "it is near again"
        master.writer.close()

    run_scene(scene())


def test_a_slave_that_is_silent_suddenly_does_not_keep_batches_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathered_batches, "HELD_SECONDS_MAX", 0.0)

    async def scene() -> None:
        master = Master()
        master.take(b"a")
        for data in (b"b", b"c"):
            master.take(data)
        await eventually(lambda: master.log == b"abc")
        assert master.sent == [1, 3]
        master.take(b"d")
        master.report(master.end - 1)
        assert master.log == b"abcd"
        await asyncio.sleep(0)
        master.writer.close()

    run_scene(scene())


def test_a_batch_that_waits_for_no_slave_tells_nothing_of_the_usual_time() -> None:
    async def scene() -> None:
        master = Master()
        master.report(0, has_slaves=False)
        master.gathered.wrote(1)
        master.answers.release(1)
        master.now += 60.0  # nobody looked: with ASYNC_FLUSH only the next batch does
        assert not master.gathered.keep(LogBatch([], 2))
        master.report(1)
        master.gathered.wrote(2)
        assert master.gathered.keep(LogBatch([], 3))
        master.writer.close()

    run_scene(scene())


def test_a_batch_that_is_late_is_not_waited_for() -> None:
    async def scene() -> None:
        master = Master()
        for data in (b"a", b"b"):
            master.take(data)
        master.now += 0.01
        master.take(b"c")
        assert master.sent == [1, 3]
        master.take(b"d")
        assert master.sent == [1, 3, 4]
        master.writer.close()

    run_scene(scene())


def test_much_does_not_wait() -> None:
    async def scene() -> None:
        master = Master()
        master.take(b"a")
        half = bytes(gathered_batches._SIZE_MAX // 2)
        master.take(half)
        assert master.sent == [1]
        master.take(half)
        assert master.sent == [1, master.end]
        master.writer.close()

    run_scene(scene())


def test_a_stop_writes_what_is_gathered() -> None:
    async def scene() -> None:
        master = Master()
        master.take(b"a")
        master.take(b"b")
        await master.writer.drain()
        assert master.log == b"ab"
        master.writer.close()

    run_scene(scene())


def test_a_stop_writes_what_is_gathered_during_its_sync() -> None:
    async def scene() -> None:
        disk = SlowDisk()
        master = Master(disk)
        master.take(b"a")
        stop = asyncio.create_task(master.writer.drain())
        await asyncio.sleep(0)  # it waits for the sync now
        master.take(b"b")
        assert master.log == b"a"
        disk.end_sync()
        await eventually(lambda: master.log == b"ab" or stop.done())
        assert master.log == b"ab"
        disk.end_sync()
        await stop
        assert master.segment.syncs == 2
        master.writer.close()

    run_scene(scene())


def test_batches_of_two_segments_are_one_batch_with_two_writes() -> None:
    async def scene() -> None:
        master, second = Master(), GatedSegment()
        master.take(b"a")
        master.take(b"b")
        master.writer.write_turn(turn(second, 0, b"c"))
        master.writer.write_turn(turn(second, 1, b"d"))
        master.writer.go_on(at_once=True)
        assert (master.segment.written, second.written) == ([b"a", b"b"], [b"c", b"d"])
        master.writer.close()

    run_scene(scene())
