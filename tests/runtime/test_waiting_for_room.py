"""The writer without room, or without a descriptor for a file: what waits, and what is said."""

import asyncio
import errno
import threading
from queue import SimpleQueue
from typing import NoReturn

import pytest
from tests.runtime.test_log_writer import GatedSegment, Reports, fail, one_turn, turn

from reliable_mq.errors import StoreError
from reliable_mq.runtime import log_writer
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MemoryDisk


class UnopenedSegment(GatedSegment):
    """A segment that was let go of, and that cannot be opened for its first two syncs."""

    refusals = 2

    def sync(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("segment") from OSError(errno.ENFILE, "Too many open files in system")
        super().sync()


def test_a_sync_waits_until_its_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.0)

    async def scenario() -> tuple[GatedSegment, Reports]:
        segment = UnopenedSegment()
        return segment, await one_turn(segment)

    segment, reports = asyncio.run(scenario())

    assert (segment.syncs, reports.ends) == (1, [(1, True)])


class ManyOpen:
    """Work of a store that cannot open a file for its first times."""

    def __init__(self, refusals: int, *, is_wrapped: bool) -> None:
        self.refusals, self.is_wrapped, self.tries = refusals, is_wrapped, 0

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.refusals:
            error = OSError(errno.EMFILE, "Too many open files")
            if self.is_wrapped:
                raise StoreError("queue") from error
            raise error
        return "done"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_job_that_can_open_no_file_is_done_when_it_can_and_sends_are_refused_until_then(
    *, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.0)
    rooms: list[bool] = []

    async def scenario() -> tuple[ManyOpen, str]:
        job = ManyOpen(3, is_wrapped=is_wrapped)
        writer = LogWriter(MemoryDisk(), 0, Reports(), None, rooms.append, on_broken=fail)
        result = await writer.run(job)
        writer.close()
        return job, result

    job, result = asyncio.run(scenario())

    assert (job.tries, result, rooms) == (4, "done", [False, True])
    assert [text for text in caplog.messages if "limit of open files" in text] == [
        "the process may open no more files, sends are refused; raise its limit of open files: "
        + ("queue" if is_wrapped else "[Errno 24] Too many open files")
    ]


def test_jobs_keep_their_order_while_one_waits_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "_ROOM_SECONDS", 0.0)
    order: list[str] = []

    async def scenario() -> None:
        waits = ManyOpen(5, is_wrapped=False)
        writer = LogWriter(MemoryDisk(), 0, Reports(), on_broken=fail)
        await asyncio.gather(
            writer.run(lambda: order.append(waits())), writer.run(lambda: order.append("later"))
        )
        writer.close()

    asyncio.run(scenario())

    assert order == ["done", "later"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sync_that_failed_is_never_tried_again() -> None:
    class Ended(Exception):
        pass

    causes: list[Exception] = []
    threads: SimpleQueue[threading.Thread] = SimpleQueue()

    def broken(cause: Exception) -> NoReturn:
        causes.append(cause)
        threads.put(threading.current_thread())
        raise Ended

    class Failing(GatedSegment):
        def sync(self) -> None:
            self.syncs += 1
            raise OSError(errno.EIO, "Input/output error")

    async def scenario() -> tuple[Failing, Reports]:
        segment, reports = Failing(), Reports()
        writer = LogWriter(MemoryDisk(), 0, reports, on_broken=broken)
        writer.write_turn(turn(segment, 0, b"a"))
        (await asyncio.to_thread(threads.get, timeout=60)).join(60)
        return segment, reports

    segment, reports = asyncio.run(scenario())

    assert (segment.syncs, reports.ends) == (1, [])
    assert [str(cause) for cause in causes] == ["[Errno 5] Input/output error"]


def test_a_writer_ends_though_a_file_cannot_be_opened() -> None:
    async def scenario() -> Reports:
        segment, reports = UnopenedSegment(), Reports()
        segment.refusals = 1_000_000
        writer = LogWriter(MemoryDisk(), 0, reports, on_broken=fail)
        writer.write_turn(turn(segment, 0, b"a"))
        await asyncio.wait_for(writer.drain(), 60)
        writer.close()
        return reports

    assert asyncio.run(scenario()).ends == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "the disk is full, sends are refused; make room"),
        (errno.EMFILE, "the process may open no more files, sends are refused; raise its limit"),
        (errno.ENFILE, "the system may open no more files, sends are refused; raise its limit"),
    ],
)
def test_a_log_that_waits_says_what_it_waits_for(
    code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(GatedSegment):
        def write(self, at: int, parts: list[bytes]) -> None:
            raise OSError(code, "no")

    async def scenario() -> None:
        writer = LogWriter(MemoryDisk(), 0, Reports(), on_broken=fail)
        writer.write_turn(turn(Refusing(), 0, b"a"))
        writer.close()

    asyncio.run(scenario())

    assert any(text.startswith(said) for text in caplog.messages), caplog.messages
