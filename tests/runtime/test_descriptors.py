"""Few of a store's files are open at a time, and nobody who reads or writes one notices."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header, send_header
from tests.broker_core.raw_client import RawClient

from reliable_mq.broker_core.store.disk import is_out_of_descriptors, is_out_of_room
from reliable_mq.errors import StoreError
from reliable_mq.runtime.descriptors import (
    Descriptor,
    Descriptors,
    files_max,
    is_last,
)
from reliable_mq.runtime.disk_file import descriptor_of
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.testing.memory_disk import MemoryDisk, MemoryFile
from reliable_mq.wire.codes import RequestCode, ResponseCode

SIZE = 4096
T = TypeVar("T")


@contextmanager
def disk_of(folder: Path, most: int) -> Iterator[tuple[FileDisk, Descriptors]]:
    """Open a folder of which so many files may be open at a time."""
    disk = FileDisk(folder)
    files = disk._files = Descriptors(most)
    try:
        yield disk, files
    finally:
        disk.close()


def test_many_descriptors_are_mostly_for_files_and_few_ones_for_connections() -> None:
    limits = (64, 256, 1_024, 9_000, 10_000, 20_000, 65_536, 1_000_000)
    assert list(map(files_max, limits)) == [16, 32, 128, 1_125, 1_808, 11_808, 16_384, 16_384]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_of_many_files_few_are_open(tmp_path: Path) -> None:
    with disk_of(tmp_path, 4) as (disk, files):
        before = open_descriptors()
        opened = [disk.open(f"q/{number}", SIZE) for number in range(100)]
        for number, file in enumerate(opened):
            file.write(8, [b"%03d" % number])
        for number, file in enumerate(opened):
            assert file.copy(8, 3) == b"%03d" % number
            assert file.read(8, 3) == b"%03d" % number
            file.sync()
        assert len(files) == 4
        assert open_descriptors() - before <= 8  # a map has one of its own
        for file in opened:
            file.close()
        assert len(files) == 0
        assert open_descriptors() == before


def test_a_file_that_is_used_stays_open_while_others_come_and_go(tmp_path: Path) -> None:
    with disk_of(tmp_path, 4) as (disk, _):
        busy = disk.open("busy", SIZE)
        busy.write(0, [b"x"])
        busy.sync()
        descriptor = descriptor_of(busy)
        assert isinstance(descriptor, Descriptor)
        for number in range(20):
            disk.open(f"other/{number}", SIZE)
            busy.write(0, [b"%02d" % number])
            assert descriptor_of(busy) is descriptor


def test_numbers_are_found_in_a_file_that_was_let_go_of(tmp_path: Path) -> None:
    with disk_of(tmp_path, 1) as (disk, _):
        index = disk.open("index", SIZE)
        index.reserve(1024)
        index.put_ints([3, 4], [7, -1])
        disk.open("other", SIZE).write(0, [b"x"])
        assert index.ints([3, 4, 5]) == [7, -1, 0]
        disk.open("third", SIZE).write(0, [b"x"])
        index.put_ints([5], [9])
        index.release()
        assert index.ints([3, 4, 5]) == [7, -1, 9]


def test_a_descriptor_that_somebody_uses_is_not_closed_under_him(tmp_path: Path) -> None:
    with disk_of(tmp_path, 1) as (disk, _):
        file = disk.open("one", SIZE)
        file.sync()
        held = descriptor_of(file)
        assert held is not None
        disk.open("two", SIZE)
        os.fdatasync(held.number)
        assert file.opened is None


def test_a_file_that_is_closed_is_not_opened_again(tmp_path: Path) -> None:
    with disk_of(tmp_path, 4) as (disk, _):
        file = disk.open("one", SIZE)
        file.close()
        disk.remove("one")
        with pytest.raises(StoreError, match="closed"):
            file.copy(0, 1)
        assert disk.size_of("one") == -1


def test_threads_share_few_descriptors(tmp_path: Path) -> None:
    with disk_of(tmp_path, 2) as (disk, _):
        opened = [disk.open(f"q/{number}", SIZE) for number in range(16)]
        faults: list[Exception] = []

        def work(place: int) -> None:
            try:
                for turn in range(40):
                    for number, file in enumerate(opened):
                        text = b"%02d.%03d" % (number, turn)
                        file.write(place, [text])
                        assert file.copy(place, len(text)) == text
                        assert file.read(place, len(text)) == text
            except (OSError, ValueError, StoreError, AssertionError) as fault:
                faults.append(fault)

        threads = [threading.Thread(target=work, args=(place * 100,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_files_are_let_go_of(code: int, tmp_path: Path) -> None:
    with disk_of(tmp_path, 100) as (disk, files):
        opened = [disk.open(f"q/{number}", SIZE) for number in range(50)]

        def act() -> str:
            if len(files) > 20:
                raise OSError(code, "too many")
            return "done"

        assert files.attempt(act) == "done"
        assert all(file.copy(0, 1) == b"\0" for file in opened)


@pytest.mark.parametrize("count", range(16))
def test_of_a_few_files_all_are_let_go_of_before_one_more_is_refused(
    count: int, tmp_path: Path
) -> None:
    def act() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    for used in {0, 1, count // 2, count}:
        with disk_of(tmp_path / str(used), 100) as (disk, files):
            opened = [disk.open(f"q/{number}", SIZE) for number in range(count)]
            for number, file in enumerate(opened):
                file.was_used = number < used
            with pytest.raises(OSError, match="Too many open files") as raised:
                files.attempt(act)
            assert is_out_of_room(raised.value)
            assert len(files) == 0
            assert all(file.opened is None for file in opened)


def test_when_no_file_can_be_let_go_of_it_is_as_with_a_full_disk() -> None:
    files = Descriptors(4)

    def act() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files") as raised:
        files.attempt(act)
    assert is_out_of_room(raised.value)


class NoDescriptors(Descriptors):
    """The open files of a process that may open no more while `is_out`."""

    is_out = False

    def _attempt(self, act: Callable[[], T]) -> T:
        def refuse() -> T:
            if self.is_out:
                raise OSError(errno.EMFILE, "Too many open files")
            return act()

        return super()._attempt(refuse)

    def attempt(self, act: Callable[[], T]) -> T:
        return self._attempt(act)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_sync_that_can_open_no_file_says_so_and_can_be_done_later(
    *, is_new: bool, tmp_path: Path
) -> None:
    with disk_of(tmp_path, 4) as (disk, _):
        files = disk._files = NoDescriptors(4)
        file = disk.open("q/one", SIZE)  # its name, in two folders, is not synced yet
        file.write(0, [b"x"])
        if not is_new:
            file.sync()
            file.let_go()
        files.is_out = True
        with pytest.raises(StoreError) as raised:
            file.sync()
        assert is_out_of_descriptors(raised.value)
        files.is_out = False
        file.sync()
        assert file.read(0, 1) == b"x"


def test_connections_leave_the_last_descriptors_to_files() -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not 0 < most < 1_000_000:
        pytest.skip("this system has no limit worth the name")
    assert not is_last(most // 2)
    assert is_last(most - 1)


class NoFiles(MemoryDisk):
    """A disk of a process that may open no more files."""

    is_out = False

    def open(self, path: str, size: int) -> MemoryFile:
        if self.is_out:
            raise StoreError(path) from OSError(errno.EMFILE, "Too many open files")
        return super().open(path, size)


def test_sends_are_refused_while_no_file_can_be_opened() -> None:
    disk = NoFiles()
    world = BrokerWorld(disk)
    header, body = send_header(TOPIC), b"x" * 60_000
    assert world.ask(RequestCode.SEND_MESSAGE_V2, header, body).code == ResponseCode.SUCCESS
    disk.is_out = True
    codes = [world.ask(RequestCode.SEND_MESSAGE_V2, header, body).code for _ in range(9)]
    assert codes[-1] == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.is_out = False
    world.now_ms += 10_000
    world.core.tick(world.now_ms)
    assert world.ask(RequestCode.SEND_MESSAGE_V2, header, body).code == ResponseCode.SUCCESS


_BROKER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from reliable_mq.cli.main import run
never_busy = ("osPageCacheBusyTimeOutMills=3600000", "waitTimeMillsInSendQueue=3600000")
sets = [word for each in never_busy for word in ("--set", each)]
ports = ["--port", "0", "--namesrv-port", "0"]
sys.argv = ["reliable-mq", "broker", "--store", sys.argv[1], *ports, *sets]
run()
"""


@contextmanager
def broker_of_few_descriptors(store: Path) -> Iterator[str]:
    """Run a broker that may have 128 descriptors; give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _BROKER, str(store)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready "), ready
            yield ready.split("broker=")[1].split()[0]
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(60)


def test_a_broker_with_few_descriptors_serves_many_queues_and_starts_again(tmp_path: Path) -> None:
    topics = [f"topic-{number}" for number in range(150)]
    with broker_of_few_descriptors(tmp_path) as address, RawClient(address) as client:
        for topic in topics:
            answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic), topic.encode())
            assert answer.code == ResponseCode.SUCCESS
        crowd = [RawClient(address) for _ in range(200)]
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_header("late"), b"late")
        assert answer.code == ResponseCode.SUCCESS
        for other in crowd:
            other.close()
    with broker_of_few_descriptors(tmp_path) as address, RawClient(address) as client:
        for topic in [*topics, "late"]:
            answer = client.ask(RequestCode.PULL_MESSAGE, pull_header(topic=topic))
            assert answer.code == ResponseCode.SUCCESS
            assert topic.encode() in answer.body
