"""What only a real disk has: a lock, holes, folders that cannot be written."""

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.forked_child import in_child

from reliable_mq.broker_core.store.disk import JoinedRows, RowsText
from reliable_mq.errors import StoreError, StoreInUse
from reliable_mq.runtime import disk_file, file_disk
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.testing.memory_disk import MemoryDisk

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_another_process_holds_is_refused_unchanged(tmp_path: Path) -> None:
    """Given a process that locks as Apache's broker does: the first byte of the file `lock`."""
    lock = tmp_path / "lock"
    lock.write_text("theirs")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"

        with pytest.raises(StoreInUse, match="another process uses this store"):
            FileDisk(tmp_path)

        assert lock.read_text() == "theirs"
    finally:
        holder.communicate()
    FileDisk(tmp_path).close()


def test_a_fork_hears_whose_the_store_is_and_may_have_it_afterwards(tmp_path: Path) -> None:
    may_go_on, goes_on = os.pipe()
    first = FileDisk(tmp_path)

    def child() -> None:
        with pytest.raises(StoreInUse, match=rf"process {os.getppid()}, of which this process"):
            FileDisk(tmp_path)
        os.write(goes_on, b"1")
        os.read(other_end, 1)
        FileDisk(tmp_path).close()

    other_end, let_go = os.pipe()

    def close_when_it_was_refused() -> None:
        os.read(may_go_on, 1)
        first.close()
        os.write(let_go, b"1")

    closing = threading.Thread(target=close_when_it_was_refused)
    closing.start()
    in_child(child)
    closing.join()


def test_a_second_disk_in_the_same_process_is_refused_and_takes_no_lock_away(
    tmp_path: Path,
) -> None:
    first = FileDisk(tmp_path)

    with pytest.raises(StoreInUse, match="this process"):
        FileDisk(tmp_path / "." / "x" / "..")

    attempt = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")],
        input=b"",
        capture_output=True,
        check=False,
    )
    assert attempt.returncode != 0
    first.close()
    FileDisk(tmp_path).close()


def test_the_lock_file_reads_as_apaches_does(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)

    assert (tmp_path / "lock").read_text() == "lock"
    disk.close()


def test_a_folder_that_is_a_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="choose a folder"):
        FileDisk(tmp_path / "file")


def test_a_file_that_died_while_it_was_made_gets_its_size(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    (tmp_path / "f").write_bytes(b"")

    assert disk.open("f", 4096).read(0, 9000) == bytes(4096)
    disk.close()


def test_a_large_file_takes_no_room_and_is_searched_at_once(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    size = 1 << 40
    file = disk.open("commitlog/0", size)
    file.write(size // 2, [b"magic"])

    assert file.find(b"magic", 0) == size // 2
    assert file.find(b"absent", 0) == -1
    assert file.clear(1) is False
    assert file.find(b"magic", 0) == -1
    assert (tmp_path / "commitlog/0").stat().st_blocks * 512 < 1 << 20
    file.close()
    disk.close()


def test_room_that_is_taken_ahead_reads_as_zeros_and_never_covers_what_is_written(
    tmp_path: Path,
) -> None:
    disk = FileDisk(tmp_path)
    size = 4 * 1024 * 1024
    file = disk.open("log", size)
    at, part = 0, bytes(range(1, 256)) * 257  # 65,535 bytes: no multiple of a page
    while at + len(part) <= size:
        file.write(at, (part,))
        at += len(part)
        file.write_ahead(at)
        assert not file.read(at, size).strip(b"\0")
    assert file.read(0, at) == part * (at // len(part))
    file.close()
    again = disk.open("log", size)  # anew, it must find out what is taken
    again.write_ahead(at)
    assert again.read(0, at) == part * (at // len(part))
    again.close()
    disk.close()


@pytest.mark.parametrize("path", ["../out", "consumequeue/../../out/0", "/out", "a\0b", ".."])
def test_no_path_leads_out_of_the_store(tmp_path: Path, path: str) -> None:
    """Names of topics are parts of paths."""
    disk = FileDisk(tmp_path / "store")
    for store in (disk, MemoryDisk()):
        with pytest.raises(StoreError, match="not a path inside the store"):
            store.open(path, 100)
        with pytest.raises(StoreError, match="not a path inside the store"):
            store.write_text(path, "text")
    for use in (disk.read_text, disk.names, disk.size_of, disk.modified_ms, disk.remove):
        with pytest.raises(StoreError, match="not a path inside the store"):
            use(path)
    disk.close()

    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_looks_at_holes_take_no_room_where_files_are_kept_in_memory() -> None:
    """A look through a map would, and without room it would end the process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        disk = FileDisk(Path(folder))
        file = disk.open("sparse", 8 << 20)
        file.write(4 << 20, [b"needle"])

        assert file.read(0, 8 << 20).count(b"\0") == (8 << 20) - 6
        assert file.find(b"needle", 0) == 4 << 20
        assert file.find(b"needle\1", 0) == -1

        assert (Path(folder) / "sparse").stat().st_blocks * 512 < 1 << 20
        file.close()
        disk.close()


def test_the_file_of_users_is_for_its_owner_only(tmp_path: Path) -> None:
    """Also if its first version, or what a crash left beside it, was open to others."""
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("access.json", "access.json.tmp"):
        (folder / name).write_text("old")
        (folder / name).chmod(0o644)
    disk = FileDisk(tmp_path)
    disk.write_text("config/access.json", "{}")
    disk.write_text("config/topics.json", "{}")
    disk.close()

    assert stat.S_IMODE((folder / "access.json").stat().st_mode) == 0o600
    assert (folder / "access.json").read_text() == "{}"


def rights_in(folder: Path) -> dict[str, int]:
    return {
        str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode)
        for each in folder.rglob("*")
        if each.name != "lock"
    }


def fill(folder: Path) -> None:
    disk = FileDisk(folder)
    disk.open("commitlog/00000000000000000000", 4096).close()
    disk.open("consumequeue/orders/0/0", 4096).close()
    disk.write_text("config/topics.json", "{}")
    disk.close()


def test_a_new_store_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "store"
    fill(folder)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(rights_in(folder)) == 8
    assert not any(rights & 0o077 for rights in rights_in(folder).values())


@pytest.mark.parametrize("rights", [0o750, 0o755])
def test_who_may_read_the_folder_may_read_what_is_new_in_it(rights: int, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(rights)
    before = os.umask(0o027)
    try:
        fill(folder)
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.stat().st_mode) == rights
    made = rights_in(folder)
    assert {made["config"], made["consumequeue/orders/0"]} == {0o750}
    assert {made["config/topics.json"], made["commitlog/00000000000000000000"]} == {0o640}


@pytest.mark.parametrize("kind", ["made before", "made after", "the system failed"])
def test_names_that_were_written_back_together_are_not_synced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A checkpoint with thousands of new queues would take minutes."""
    synced: list[Path] = []
    monkeypatch.setattr(disk_file, "sync_folder", lambda _files, folder: synced.append(folder))
    if kind == "the system failed":
        monkeypatch.setattr(file_disk, "_SYNCFS", lambda _descriptor: -1)
    elif file_disk._SYNCFS is None:
        pytest.skip("this system has no syncfs")
    disk = FileDisk(tmp_path)
    if kind == "made after":
        disk.write_back()
    file = disk.open("consumequeue/t/0/0", 20)
    file.write(0, [b"x" * 20])
    if kind != "made after":
        disk.write_back()
    file.sync()
    assert bool(synced) == (kind != "made before")
    synced.clear()
    file.sync()
    assert synced == []
    file.close()
    disk.close()


def test_a_long_table_reaches_the_medium_bit_by_bit_and_a_short_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of the log waits for all that is on its way to the medium."""
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(
        file_disk, "_SYNC_RANGE", lambda _file, at, size, _flags: ranges.append((at, size))
    )
    rows = [f"{number:0999}" for number in range(1_000)]
    parts = [JoinedRows(rows[at : at + 10], ",") for at in range(0, 1_000, 10)]
    disk = FileDisk(tmp_path)
    for count, is_paced in ((10, True), (100, False), (100, True)):
        assert not ranges
        text = RowsText("<", parts[:count], ",", ">")
        text.is_paced = is_paced
        disk.write_text("config/topics.json", text)
    written = disk.read_text("config/topics.json").replace(" ", "")  # the head is filled up
    assert written == "<" + ",".join(rows) + ">"
    disk.close()

    assert [at for at, _size in ranges] == [0, *(at + size for at, size in ranges[:-1])]
    first, *others = (size for _at, size in ranges)
    assert first >= file_disk._PACED_FROM > file_disk._PACED_SIZE
    assert len(others) > 5
    assert max(others) < 2 * file_disk._PACED_SIZE
