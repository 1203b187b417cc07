"""Syncs by the kernel: told on the loop, errors included; and a log writer over them."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import LogBatch, SegmentWrite
from reliable_mq.runtime.disk_file import descriptor_of
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.syncs import KernelSync, KernelSyncs

SEGMENT_SIZE = 1024 * 1024


def kernel() -> KernelSync:
    try:
        return KernelSync(asyncio.get_running_loop())
    except OSError as error:
        pytest.skip(f"this kernel does not sync by itself: {error}")


def test_the_loop_is_told_once_when_all_files_are_synced(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        sync = kernel()
        files = [(tmp_path / name).open("wb", buffering=0) for name in "abc"]
        for file in files:
            file.write(b"x" * 4096)
        told: list[int] = []
        ended = asyncio.Event()

        def done(error: int) -> None:
            told.append(error)
            ended.set()

        for _ in range(3):
            ended.clear()
            sync.start([file.fileno() for file in files], done)
            await ended.wait()
        sync.close()
        for file in files:
            file.close()
        return told

    assert asyncio.run(scenario()) == [0, 0, 0]


def test_what_cannot_be_synced_is_refused_or_told_as_an_error() -> None:
    async def scenario() -> int:
        sync = kernel()
        reader, writer = os.pipe()  # a pipe has no medium
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            sync.start([writer], told.set_result)
            return await told
        except OSError as error:
            return error.errno or 0
        finally:
            sync.close()
            os.close(reader)
            os.close(writer)

    assert asyncio.run(scenario()) == errno.EINVAL


def test_a_log_writer_reports_each_batch_once_and_in_order(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[int, bool]]:
        disk = FileDisk(tmp_path)
        segment = disk.open("commitlog/00000000000000000000", SEGMENT_SIZE)
        reports: list[tuple[int, bool]] = []
        writer = LogWriter(
            disk,
            0,
            lambda end, durable: reports.append((end, durable)),
            KernelSyncs(kernel(), descriptor_of),
        )
        for at in range(0, 40, 4):
            writer.write_turn(
                Turn(LogBatch([SegmentWrite(segment, at, [b"abcd"])], at + 4), [], {})
            )
            if at % 12 == 0:
                await writer.drain()
        await writer.drain()
        assert segment.read(0, 40) == b"abcd" * 10
        writer.close()
        segment.close()
        disk.close()
        return reports

    reports = asyncio.run(scenario())

    ends = [end for end, _ in reports]
    assert ends == sorted(set(ends))
    assert ends[-1] == 40
    assert all(durable for _, durable in reports)
