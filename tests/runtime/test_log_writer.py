"""The thread that writes and syncs: what shares a sync, and what is reported when."""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, cast

import pytest
from tests.waiting import eventually

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import LogBatch, SegmentWrite
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.runtime import log_writer
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.syncs import Syncs
from reliable_mq.testing.memory_disk import MemoryDisk

SEGMENT_SIZE = 4096


class GatedSegment:
    """A segment whose syncs wait for the test; it counts them."""

    size = SEGMENT_SIZE

    def __init__(self, *, is_open: bool = True) -> None:
        self.written: list[bytes] = []
        self.zeros: list[int] = []  # where they begin
        self.syncs = 0
        self.is_syncing = threading.Event()
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def read(self, at: int, size: int) -> bytes:
        return b"".join(self.written)[at : at + size]

    def write(self, at: int, parts: list[bytes]) -> None:
        assert at == len(b"".join(self.written))
        self.written += parts

    def write_ahead(self, at: int) -> None:
        self.zeros.append(at)

    def sync(self) -> None:
        self.is_syncing.set()
        assert self.gate.wait(60)
        self.syncs += 1

    def close(self) -> None:
        self.gate.set()


def fail(cause: Exception) -> NoReturn:
    raise AssertionError("the broker would end") from cause


class Reports:
    """What the writer reported, in order."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, bool]] = []

    def __call__(self, end: int, is_durable: bool) -> None:
        self.ends.append((end, is_durable))


async def one_turn(segment: GatedSegment, syncs: Syncs | None = None) -> Reports:
    """Have one turn written and synced; return what was told of it."""
    reports = Reports()
    writer = LogWriter(MemoryDisk(), 0, reports, syncs, on_broken=fail)
    writer.write_turn(turn(segment, 0, b"a"))
    await eventually(lambda: bool(reports.ends))
    writer.close()
    return reports


def turn(segment: GatedSegment, at: int, data: bytes) -> Turn:
    return Turn(
        LogBatch([SegmentWrite(cast("DiskFile", segment), at, [data])], at + len(data)), [], {}
    )


def test_turns_that_come_during_a_sync_share_the_next_one() -> None:
    async def scenario() -> tuple[GatedSegment, Reports]:
        segment, reports = GatedSegment(is_open=False), Reports()
        writer = LogWriter(MemoryDisk(), 0, reports)
        writer.write_turn(turn(segment, 0, b"a"))
        await asyncio.to_thread(segment.is_syncing.wait)
        for at, data in enumerate((b"b", b"c", b"d"), start=1):
            writer.write_turn(turn(segment, at, data))
        segment.gate.set()
        await writer.drain()
        writer.close()
        return segment, reports

    segment, reports = asyncio.run(scenario())

    assert b"".join(segment.written) == b"abcd"
    assert reports.ends == [(1, True), (4, True)]
    assert segment.syncs == 2


def test_zeros_are_written_ahead_while_each_sync_has_little() -> None:
    """They save more than they cost only then: a copy of a whole log writes everything twice."""
    little, much = 1_000, 300_000

    async def scenario() -> GatedSegment:
        segment = GatedSegment()
        writer = LogWriter(MemoryDisk(), 0, Reports(), on_broken=fail)
        at = 0
        for size in (little, much, much, little, little):
            writer.write_turn(turn(segment, at, bytes(size)))
            await writer.drain()
            at += size
        writer.close()
        return segment

    # Much gets none. Whether little gets zeros is decided by the sync before it.
    assert asyncio.run(scenario()).zeros == [little, 3 * little + 2 * much]


def test_nothing_is_reported_before_it_is_synced() -> None:
    async def scenario() -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
        segment, reports = GatedSegment(is_open=False), Reports()
        writer = LogWriter(MemoryDisk(), 0, reports)
        writer.write_turn(turn(segment, 0, b"a"))
        await asyncio.to_thread(segment.is_syncing.wait)
        before = list(reports.ends)
        segment.gate.set()
        await writer.drain()
        writer.close()
        return before, reports.ends

    assert asyncio.run(scenario()) == ([], [(1, True)])


def test_with_an_interval_a_turn_is_reported_as_written_and_again_when_it_is_synced() -> None:
    async def scenario() -> tuple[GatedSegment, Reports]:
        segment, reports = GatedSegment(), Reports()
        writer = LogWriter(MemoryDisk(), 3600, reports)
        writer.write_turn(turn(segment, 0, b"a"))
        await writer.drain()
        writer.write_turn(turn(segment, 1, b"b"))
        await writer.run(lambda: None)
        syncs_before_the_drain = segment.syncs
        await writer.drain()
        writer.close()
        assert syncs_before_the_drain == 1
        return segment, reports

    segment, reports = asyncio.run(scenario())

    assert reports.ends == [(1, False), (1, True), (2, False), (2, True)]
    assert segment.syncs == 2


def test_files_of_a_turn_are_written_after_its_batch() -> None:
    async def scenario() -> str:
        disk = MemoryDisk()
        writer = LogWriter(disk, 0, Reports())
        writer.write_turn(Turn(None, [], {"config/topics.json": "{}"}))
        await writer.drain()
        writer.close()
        return disk.read_text("config/topics.json")

    assert asyncio.run(scenario()) == "{}"


def test_a_job_runs_between_rounds_and_its_caller_waits_for_it() -> None:
    async def scenario() -> str:
        names: list[str] = []
        writer = LogWriter(MemoryDisk(), 0, Reports())
        await writer.run(lambda: names.append(threading.current_thread().name))
        writer.close()
        return names[0]

    assert asyncio.run(scenario()) == "reliable-mq-writer"


class FullSegment(GatedSegment):
    """A segment on a disk that has no room until the test makes some."""

    has_room = False

    def write(self, at: int, parts: list[bytes]) -> None:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(at, parts)


def test_a_full_disk_keeps_batches_waiting_in_order_and_lets_them_go_on_when_there_is_room() -> (
    None
):
    async def scenario() -> tuple[FullSegment, Reports, list[bool]]:
        segment, reports, rooms = FullSegment(), Reports(), list[bool]()
        writer = LogWriter(MemoryDisk(), 0, reports, on_room=rooms.append)
        for at, data in enumerate((b"a", b"b")):
            writer.write_turn(turn(segment, at, data))
        assert writer.is_waiting_for_room
        assert (reports.ends, rooms) == ([], [False])
        segment.has_room = True
        await eventually(lambda: not writer.is_waiting_for_room)
        writer.write_turn(turn(segment, 2, b"c"))
        await writer.drain()
        writer.close()
        return segment, reports, rooms

    segment, reports, rooms = asyncio.run(scenario())
    assert b"".join(segment.written) == b"abc"
    assert reports.ends[-1] == (3, True)
    assert rooms == [False, True]


def test_a_configuration_file_that_found_no_room_is_written_with_the_next_one() -> None:
    async def scenario() -> MemoryDisk:
        disk = MemoryDisk()
        disk.error = errno.ENOSPC
        disk.fail_at = 0
        writer = LogWriter(disk, 0, Reports())
        writer.write_turn(Turn(None, [], {"first": "1"}))
        writer.write_turn(Turn(None, [], {"second": "2"}))
        await writer.drain()
        writer.close()
        return disk

    disk = asyncio.run(scenario())
    assert (disk.read_text("first"), disk.read_text("second")) == ("1", "2")


def test_a_configuration_file_that_finds_no_room_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.error = errno.ENOSPC
        writer = LogWriter(disk, 0, Reports())
        for number in range(3):
            disk.fail_at = len(disk.operations)
            writer.write_turn(Turn(None, [], {"first": f"{number}"}))
            await writer.drain()
        writer.close()

    asyncio.run(scenario())
    assert [text for text in caplog.messages if text.startswith("first: no room")] == [
        "first: no room for it, it is written later; the disk is full: make room"
    ]


def test_files_without_room_are_told_like_a_log_without_room_until_all_is_written() -> None:
    async def scenario() -> list[bool]:
        disk, segment, rooms = MemoryDisk(), FullSegment(), list[bool]()
        disk.error, disk.fail_at = errno.ENOSPC, 0
        saved = asyncio.Event()
        writer = LogWriter(disk, 0, Reports(), None, rooms.append, saved.set)
        writer.write_turn(Turn(None, [], {"config/topics.json": "{}"}))
        await writer.drain()
        assert rooms == [False]
        writer.write_turn(turn(segment, 0, b"a"))
        await eventually(saved.is_set)
        assert rooms == [False]
        segment.has_room = True
        await eventually(lambda: not writer.is_waiting_for_room)
        writer.close()
        return rooms

    assert asyncio.run(scenario()) == [False, True]


def test_a_writer_that_is_closed_writes_nothing_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.01)

    async def scenario() -> tuple[FullSegment, MemoryDisk]:
        disk, segment = MemoryDisk(), FullSegment()
        disk.error, disk.fail_at = errno.ENOSPC, 0
        writer = LogWriter(disk, 0, Reports())
        writer.write_turn(turn(segment, 0, b"a"))
        writer.write_turn(Turn(None, [], {"config/topics.json": "{}"}))
        await writer.drain()
        writer.close()
        assert writer.is_waiting_for_room
        segment.has_room = True
        # What the writer had set its timer for came before this one, which was set last.
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(log_writer._ROOM_SECONDS, due.set)
        await due.wait()
        return segment, disk

    segment, disk = asyncio.run(scenario())
    assert segment.written == []
    assert disk.read_text("config/topics.json") == ""


class RefusingKernel:
    """Syncs that cannot be done without a thread."""

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        return False

    def close(self) -> None:
        pass


def test_what_the_kernel_does_not_sync_a_thread_does() -> None:
    async def scenario() -> tuple[GatedSegment, Reports]:
        segment, reports = GatedSegment(), Reports()
        writer = LogWriter(MemoryDisk(), 0, reports, RefusingKernel())
        writer.write_turn(turn(segment, 0, b"a"))
        await writer.drain()
        writer.close()
        return segment, reports

    segment, reports = asyncio.run(scenario())

    assert (segment.syncs, reports.ends) == (1, [(1, True)])


def test_what_comes_during_a_sync_longer_than_its_interval_is_synced_without_another_message() -> (
    None
):
    async def scenario() -> list[tuple[int, bool]]:
        loop = asyncio.get_running_loop()
        due: list[Callable[[], None]] = []

        def call_later(_seconds: float, callback: Callable[[], None]) -> asyncio.Handle:
            due.append(callback)
            return loop.call_soon(lambda: None)

        loop.call_later = call_later  # type: ignore[method-assign, assignment]
        segment = GatedSegment(is_open=False)
        durable: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        writer = LogWriter(
            MemoryDisk(), 1.0, lambda end, is_safe: durable.put_nowait((end, is_safe))
        )
        writer.write_turn(turn(segment, 0, b"a"))
        due.pop()()
        await asyncio.to_thread(segment.is_syncing.wait)
        writer.write_turn(turn(segment, 1, b"b"))
        due.pop()()  # while the first sync runs
        segment.gate.set()
        told = [await durable.get() for _ in range(3)]
        due.pop()()
        told.append(await durable.get())
        await writer.drain()
        writer.close()
        return told

    assert asyncio.run(scenario()) == [(1, False), (2, False), (1, True), (2, True)]
