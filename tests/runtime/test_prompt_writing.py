"""The writer over syncs on the loop: what it reports while the medium is quick, slow and broken."""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest
from tests.runtime.test_log_writer import GatedSegment, Reports, fail, one_turn, turn

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.disk import DiskFile, FileText, RowsText
from reliable_mq.errors import StoreError
from reliable_mq.runtime import log_writer
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.syncs import PAUSE_SECONDS, VERY_SLOW_SECONDS, PromptSyncs
from reliable_mq.testing.memory_disk import MemoryDisk


class Elsewhere:
    """Syncs that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], None]] = []
        self.is_closed = False

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        def end() -> None:
            for file in files:
                file.sync()
            done()

        self.begun.append(end)
        return True

    def close(self) -> None:
        self.is_closed = True


class Seconds:
    """A clock that goes on by `step` with every look: each sync takes so long."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_prompt_sync_that_fails_breaks_the_writer_and_reports_nothing() -> None:
    class Ended(Exception):
        pass

    class Failing(GatedSegment):
        def sync(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    causes: list[Exception] = []

    def broken(cause: Exception) -> NoReturn:
        causes.append(cause)
        raise Ended

    async def scenario() -> Reports:
        reports = Reports()
        syncs = PromptSyncs(None, on_broken=broken)
        writer = LogWriter(MemoryDisk(), 0, reports, syncs, on_broken=broken)
        with pytest.raises(Ended):
            writer.write_turn(turn(Failing(), 0, b"a"))
        writer.close()
        return reports

    assert asyncio.run(scenario()).ends == []
    assert [str(cause) for cause in causes] == ["[Errno 5] Input/output error"]


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_prompt_sync_whose_file_cannot_be_opened_is_left_to_the_thread(
    *, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.0)

    class Unopened(GatedSegment):
        refusals = 3

        def sync(self) -> None:
            if self.refusals:
                self.refusals -= 1
                error = OSError(errno.EMFILE, "Too many open files")
                if is_wrapped:
                    raise StoreError("segment") from error
                raise error
            super().sync()

    async def scenario() -> tuple[GatedSegment, Reports]:
        segment = Unopened()
        return segment, await one_turn(segment, PromptSyncs(None, on_broken=fail))

    segment, reports = asyncio.run(scenario())

    assert (segment.syncs, reports.ends) == (1, [(1, True)])


def test_turns_that_a_prompt_report_brings_are_synced_and_reported_each_in_order() -> None:
    async def scenario() -> tuple[GatedSegment, list[tuple[int, bool]]]:
        segment, ends = GatedSegment(), list[tuple[int, bool]]()

        def stored(end: int, is_durable: bool) -> None:
            ends.append((end, is_durable))
            if end < 4:  # within `start`: what was released asks for more
                writer.write_turn(turn(segment, end, b"x"))

        writer = LogWriter(MemoryDisk(), 0, stored, PromptSyncs(None, Seconds(0.0)))
        writer.write_turn(turn(segment, 0, b"x"))
        assert ends == [(end, True) for end in (1, 2, 3, 4)]
        await writer.drain()
        writer.close()
        return segment, ends

    segment, ends = asyncio.run(scenario())
    assert (segment.syncs, len(ends)) == (4, 4)


def test_a_medium_that_becomes_slow_is_synced_elsewhere_and_at_once_when_it_is_quick_again() -> (
    None
):
    async def scenario() -> None:
        segment, reports, others = GatedSegment(), Reports(), Elsewhere()
        clock = Seconds(2 * VERY_SLOW_SECONDS)
        writer = LogWriter(MemoryDisk(), 0, reports, PromptSyncs(others, clock))
        writer.write_turn(turn(segment, 0, b"a"))
        for at in (1, 2, 3):
            writer.write_turn(turn(segment, at, b"b"))
        assert (reports.ends, len(others.begun)) == ([(1, True)], 1)

        others.begun.pop()()
        assert reports.ends == [(1, True), (2, True)]
        others.begun.pop()()  # what came meanwhile shared this one
        assert reports.ends[2:] == [(4, True)]

        clock.now, clock.step = clock.now + PAUSE_SECONDS, 0.0
        writer.write_turn(turn(segment, 4, b"c"))
        assert (reports.ends[3:], others.begun) == ([(5, True)], [])
        await writer.drain()
        writer.close()
        assert others.is_closed

    asyncio.run(scenario())


def test_a_writer_is_drained_only_when_a_sync_elsewhere_has_ended() -> None:
    async def scenario() -> None:
        segment, reports, others = GatedSegment(), Reports(), Elsewhere()
        clock = Seconds(2 * VERY_SLOW_SECONDS)
        writer = LogWriter(MemoryDisk(), 0, reports, PromptSyncs(others, clock))
        writer.write_turn(turn(segment, 0, b"a"))
        writer.write_turn(turn(segment, 1, b"b"))
        drained = asyncio.create_task(writer.drain())
        await asyncio.sleep(0)
        assert not drained.done()

        others.begun.pop()()
        await drained
        writer.close()
        assert (reports.ends[-1], segment.syncs) == ((2, True), 2)

    asyncio.run(scenario())


def test_the_syncs_of_a_copy_in_bulk_run_elsewhere_while_more_is_taken() -> None:
    much = bytes(log_writer._MUCH + 1)

    async def scenario() -> None:
        segment, reports, others = GatedSegment(), Reports(), Elsewhere()
        writer = LogWriter(
            MemoryDisk(), 0, reports, PromptSyncs(others, Seconds(0.0)), is_copying=True
        )
        writer.write_turn(turn(segment, 0, b"a"))
        assert reports.ends == [(1, True)], "a little is synced at once"
        writer.write_turn(turn(segment, 1, much))
        writer.write_turn(turn(segment, 1 + len(much), much))
        assert len(b"".join(segment.written)) == 1 + 2 * len(much)
        assert (segment.syncs, len(others.begun)) == (1, 1)
        others.begun.pop()()
        others.begun.pop()()
        ends = [1, 1 + len(much), 1 + 2 * len(much)]
        assert reports.ends == [(end, True) for end in ends]
        await writer.drain()
        writer.close()

    asyncio.run(scenario())


def test_the_loop_syncs_no_log_while_tables_are_written() -> None:
    """The sync waits for the medium, which is busy with the table. The loop serves others."""

    class SlowDisk(MemoryDisk):
        def write_text(self, path: str, text: FileText) -> None:
            assert gate.wait(60)
            super().write_text(path, text)

    gate = threading.Event()

    async def scenario() -> None:
        segment, reports, others = GatedSegment(), Reports(), Elsewhere()
        saved = asyncio.Event()
        syncs = PromptSyncs(others, Seconds(0.0))
        writer = LogWriter(SlowDisk(), 0, reports, syncs, on_saved=saved.set)
        writer.write_turn(turn(segment, 0, b"a"))
        writer.write_turn(Turn(None, [], {"config/topics.json": "{}"}, []))
        writer.write_turn(turn(segment, 1, b"b"))
        assert (segment.syncs, len(others.begun)) == (1, 1)
        others.begun.pop()()
        gate.set()
        await saved.wait()
        writer.write_turn(turn(segment, 2, b"c"))
        assert (segment.syncs, len(others.begun)) == (3, 0)
        assert reports.ends == [(1, True), (2, True), (3, True)]
        await writer.drain()
        writer.close()

    asyncio.run(scenario())


def test_a_sync_that_the_kernel_refuses_does_not_wait_for_a_table() -> None:
    """It refuses two files, a new file, and any file on some file systems."""

    class SlowDisk(MemoryDisk):
        def write_text(self, path: str, text: FileText) -> None:
            assert gate.wait(60)
            super().write_text(path, text)

    class Refusing(Elsewhere):
        def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
            self.begun.append(done)
            return not files

    gate = threading.Event()

    async def scenario() -> None:
        segment, reports, others = GatedSegment(), Reports(), Refusing()
        writer = LogWriter(SlowDisk(), 0, reports, PromptSyncs(others, Seconds(0.0)))
        writer.write_turn(Turn(None, [], {"config/topics.json": "{}"}, []))
        writer.write_turn(turn(segment, 0, b"a"))
        assert (segment.syncs, reports.ends, len(others.begun)) == (1, [(1, True)], 1)
        gate.set()
        await writer.drain()
        writer.close()

    asyncio.run(scenario())


def test_a_table_is_written_bit_by_bit_only_if_somebody_waits_for_the_log() -> None:
    """Else it would only take longer: who creates one topic after another waits for each write."""

    async def scenario() -> None:
        segment = GatedSegment()
        writer = LogWriter(MemoryDisk(), 0, Reports(), PromptSyncs(None, Seconds(0.0)))
        texts = [RowsText("{", [], ",", "}") for _ in range(2)]
        writer.write_turn(Turn(None, [], {"config/topics.json": texts[0]}, []))
        writer.write_turn(turn(segment, 0, b"a"))
        writer.write_turn(Turn(None, [], {"config/topics.json": texts[1]}, []))
        assert [text.is_paced for text in texts] == [False, True]
        await writer.drain()
        writer.close()

    asyncio.run(scenario())
