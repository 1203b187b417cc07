"""What the store asks of a disk; the real one and the one in memory give the same."""

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from reliable_mq.broker_core.store.disk import (
    Disk,
    is_out_of_descriptors,
    is_out_of_room,
    lack_of,
)
from reliable_mq.errors import StoreError
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.testing.memory_disk import MemoryDisk

SIZE = 3 * 4096 + 100


@pytest.fixture(params=["FileDisk", "MemoryDisk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: FileDisk | MemoryDisk
    made = FileDisk(tmp_path / "store") if request.param == "FileDisk" else MemoryDisk()
    yield made
    made.close()


def test_a_new_file_is_zero_and_as_long_as_asked(disk: Disk) -> None:
    file = disk.open("commitlog/0", SIZE)

    assert file.size == disk.size_of("commitlog/0") == SIZE
    assert file.read(0, SIZE) == bytes(SIZE)


def test_what_was_written_is_read_back_also_after_opening_again(disk: Disk) -> None:
    file = disk.open("a/b/c", SIZE)
    file.write(10, [b"one", b"", b"two"])
    file.write(13, [b"T"])
    file.sync()
    file.close()

    again = disk.open("a/b/c", 77)

    assert again.size == SIZE
    assert again.read(9, 8) == b"\0oneTwo\0"


def test_a_read_past_the_end_is_short(disk: Disk) -> None:
    file = disk.open("f", SIZE)
    file.write(SIZE - 3, [b"end"])

    assert file.read(SIZE - 3, 100) == b"end"
    assert file.read(SIZE, 1) == b""


def test_many_parts_are_written_in_their_order(disk: Disk) -> None:
    file = disk.open("f", SIZE)
    parts = [b"%04d" % number for number in range(3000)]

    file.write(50, parts)

    assert file.read(50, 12_000) == b"".join(parts)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 5000, SIZE - 5])
def test_a_needle_is_found_wherever_it_is(disk: Disk, at: int) -> None:
    file = disk.open("f", SIZE)
    file.write(at, [b"magic"])

    assert file.find(b"magic", 0) == at
    assert file.find(b"magic", at) == at
    assert file.find(b"magic", at + 1) == -1
    assert file.find(b"other", 0) == -1


def test_what_is_cleared_is_zero_up_to_the_end(disk: Disk) -> None:
    file = disk.open("f", SIZE)
    file.write(100, [b"x" * 9000])
    file.write(SIZE - 1, [b"y"])

    assert file.clear(4000) is False

    assert file.read(0, SIZE) == bytes(100) + b"x" * 3900 + bytes(SIZE - 4000)
    assert file.clear(4000) is True


def test_names_are_sorted_and_of_one_folder(disk: Disk) -> None:
    for path in ("q/t/1", "q/t/0", "q/a/0", "other"):
        disk.open(path, 10).close()
    disk.write_text("config/topics.json", "{}")

    assert disk.names("q") == ["a", "t"]
    assert disk.names("q/t") == ["0", "1"]
    assert disk.names("config") == ["topics.json"]
    assert disk.names("nowhere") == []


def test_a_text_is_replaced_whole(disk: Disk) -> None:
    assert disk.read_text("config/x") == ""

    disk.write_text("config/x", "a long first text")
    disk.write_text("config/x", "grün")

    assert disk.read_text("config/x") == "grün"
    assert disk.size_of("config/x") == 5


def test_a_removed_file_is_gone_and_made_anew_as_zeros(disk: Disk) -> None:
    file = disk.open("q/0", SIZE)
    file.write(0, [b"old"])
    file.close()

    disk.remove("q/0")
    disk.remove("q/0")
    disk.remove("never/there")

    assert disk.size_of("q/0") == -1
    assert disk.open("q/0", SIZE).read(0, 3) == bytes(3)


def test_a_file_that_is_not_there_has_no_size(disk: Disk) -> None:
    assert disk.size_of("abort") == -1


def test_the_boot_id_stays_the_same_while_the_machine_runs(disk: Disk) -> None:
    assert disk.boot_id == disk.boot_id


def test_the_one_in_memory_forgets_what_was_not_synced() -> None:
    """And the harness notices: with a medium that drops everything, only synced bytes are left."""
    disk = MemoryDisk()
    file = disk.open("f", 2048)
    file.write(0, [b"kept"])
    file.sync()
    file.write(600, [b"lost"])
    other = disk.open("g", 10)
    other.write(0, [b"x"])

    disk.lose_power(Least())

    assert disk.open("f", 2048).read(0, 2048) == b"kept" + bytes(2044)
    assert disk.size_of("g") == -1


class Least(Random):
    """Lets every sector keep its oldest bytes, and every unsynced name go."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 0.0


def test_a_closed_file_and_a_place_before_its_begin_are_refused(disk: Disk) -> None:
    file = disk.open("f", SIZE)
    with pytest.raises(OSError, match="Invalid argument"):
        file.copy(-1, 10)
    file.close()
    file.close()

    for use in (lambda: file.copy(0, 1), lambda: file.write(0, [b"x"]), file.sync):
        with pytest.raises(StoreError, match="the file is closed"):
            use()


def test_numbers_are_read_and_written_only_in_reserved_room(disk: Disk) -> None:
    file = disk.open("f", SIZE)
    file.reserve(9)
    file.put_ints([1], [-5])

    assert file.ints([0, 1]) == [0, -5]
    with pytest.raises(IndexError):
        file.ints([2])
    with pytest.raises(IndexError):
        file.put_ints([2], [1])


def test_the_one_in_memory_counts_open_files_and_notes_looks_on_demand() -> None:
    disk = MemoryDisk()
    one, other = disk.open("f", SIZE), disk.open("f", SIZE)
    one.read(0, 1)
    assert (disk.opened["f"], disk.looks) == (2, None)

    one.close()
    disk.looks = []
    other.copy(3, 4)
    other.release()
    other.read_ahead(is_wanted=False)
    other.write_ahead(9)

    assert disk.opened["f"] == 1
    assert [(look.verb, look.at, look.size) for look in disk.looks] == [
        *(("read", 3, 4), ("release", 0, 0), ("read_ahead False", 0, 0), ("write_ahead", 9, 0)),
    ]


@pytest.mark.parametrize(
    ("number", "is_room", "is_descriptors", "what"),
    [
        (errno.ENOSPC, True, False, "the disk is full"),
        (errno.EDQUOT, True, False, "the quota of the disk is used up"),
        (errno.EMFILE, True, True, "the process may open no more files"),
        (errno.ENFILE, True, True, "the system may open no more files"),
        (errno.EIO, False, False, ""),
        (errno.EPERM, False, False, ""),
        (None, False, False, ""),
    ],
)
def test_a_lack_of_room_is_told_from_a_broken_disk(
    number: int | None, is_room: bool, is_descriptors: bool, what: str
) -> None:
    plain = OSError(number, "no") if number else OSError("no")
    wrapped = StoreError("no")
    wrapped.__cause__ = plain
    for error in (plain, wrapped):
        assert is_out_of_room(error) is is_room
        assert is_out_of_descriptors(error) is is_descriptors
        if is_room:
            assert lack_of(error).what == what
    assert not is_out_of_room(StoreError("alone"))
    assert not is_out_of_room(ValueError("other"))
