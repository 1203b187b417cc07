"""Rows added to a long table are written behind the others; no crash leaves a half of them."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from reliable_mq.broker_core.config_loading import load_tables
from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.broker_core.topics import PATH, TopicConfig, TopicTable
from reliable_mq.errors import StoreCorrupt
from reliable_mq.runtime import table_files
from reliable_mq.runtime.descriptors import Descriptors
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.table_files import LONG, Pieces, TableFiles
from reliable_mq.testing.memory_disk import MemoryDisk

SECTOR = 512
MANY = 2_500  # topics; their table is long


class Whole:
    """Writes files anew, and counts them by name."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, full: Path, pieces: Pieces, *, is_paced: bool = False) -> None:
        self.names.append(full.name)
        new = full.with_suffix(".tmp")
        new.write_bytes(b"".join(pieces))
        new.replace(full)


class World:
    """A table of topics and its files."""

    def __init__(self, folder: Path, topics: int = MANY, size: int = 0) -> None:
        self.path = folder / "topics.json"
        self.copy = folder / "topics.json.bak"
        self.whole = Whole()
        self.files = TableFiles(Descriptors(), self.whole)
        self.table = TopicTable()
        for number in range(topics):
            self.add(f"topic-{number}", size=size)

    def add(self, name: str, perm: int = 6, size: int = 0) -> None:
        attributes = {"+note": "n" * size} if size else {}
        topic = TopicConfig(topic_name=name, perm=perm, attributes=attributes)
        self.table.set_topic(topic, 1)

    def write(self) -> RowsText:
        text = self.table.dump()
        self.files.write(self.path, text)
        return text

    def grown(self) -> "World":
        """Write until additions go behind the others."""
        for number in range(3):
            self.add(f"grown-{number}")
            self.write()
        self.whole.names.clear()
        return self


def read(data: bytes) -> dict[str, TopicConfig]:
    """Return the topics of a text; a broker reads it so."""
    disk, table = MemoryDisk(), TopicTable()
    disk.place_file(PATH, data)
    load_tables(disk, {PATH: table.load})
    return table.by_name


def test_of_many_topics_that_are_added_none_writes_the_whole_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(600):
        before = dict(world.table.by_name)
        world.add(f"more-{number}")
        world.write()
        if number in (2, 3, 10, 255, 256, 257, 599):
            assert read(world.path.read_bytes()) == dict(world.table.by_name)
            assert read(world.copy.read_bytes()) == before
    assert world.whole.names == ["topics.json", "topics.json", "topics.json.bak"]


def test_what_is_read_is_the_table_with_its_version(tmp_path: Path) -> None:
    world = World(tmp_path).grown()
    world.add("last")
    world.write()
    table = TopicTable()
    table.load(world.path.read_text())
    assert table.by_name == world.table.by_name
    assert table.version == world.table.version
    assert table.is_ours
    assert world.whole.names == []


def test_a_short_table_is_written_as_a_whole_and_has_no_copy(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    for number in range(5):
        world.add(f"more-{number}")
        assert world.path.write_bytes(b"") == 0
        text = world.write()
        assert world.path.read_text() == str(text)
    assert world.whole.names == ["topics.json"] * 5
    assert not world.copy.exists()
    assert len(str(World(tmp_path, MANY).table.dump())) > LONG


def test_a_change_of_a_row_or_its_removal_is_written_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path).grown()
    world.add("topic-7", perm=4)
    world.write()
    world.table.remove(f"topic-{MANY - 1}", 1)
    world.write()
    assert world.whole.names == ["topics.json"] * 2
    assert read(world.path.read_bytes()) == dict(world.table.by_name)
    world.whole.names.clear()
    world.grown()
    world.add("again")
    world.write()
    assert world.whole.names == []
    assert read(world.path.read_bytes()) == dict(world.table.by_name)


def test_much_that_is_added_at_once_is_written_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path).grown()
    for number in range(1_000):
        world.add(f"flood-{number}")
    world.write()
    assert world.whole.names == ["topics.json"]


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_file_that_somebody_else_has_changed_is_written_as_a_whole(
    tmp_path: Path, is_copy: bool
) -> None:
    world = World(tmp_path).grown()
    path = world.copy if is_copy else world.path
    path.write_bytes(path.read_bytes() + b"\n")
    world.add("next")
    world.write()
    assert world.whole.names == [path.name]
    path.unlink()
    world.add("after")
    world.write()
    assert world.whole.names[1:] == [path.name]
    assert read(world.path.read_bytes()) == dict(world.table.by_name)


def test_after_an_error_the_whole_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path).grown()
    world.add("next")
    with monkeypatch.context() as patched:
        patched.setattr(table_files, "write_rest", _fail)
        with pytest.raises(OSError, match="no room"):
            world.write()
    world.write()
    assert world.whole.names == ["topics.json"]
    assert read(world.path.read_bytes()) == dict(world.table.by_name)


def _fail(_descriptor: int, _data: bytes, _at: int) -> None:
    raise OSError("no room")


def torn(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield what a medium may have after a loss of power: each sector is old or new."""
    size = len(new)
    places = range(0, size, SECTOR)
    padded = old.ljust(size, b"\0")
    changed = [at for at in places if padded[at : at + SECTOR] != new[at : at + SECTOR]]
    assert 2 <= len(changed) <= 6
    for choice in product((False, True), repeat=len(changed)):
        data = bytearray(padded)
        for at, is_new in zip(changed, choice, strict=True):
            if is_new:
                data[at : at + SECTOR] = new[at : at + SECTOR]
        yield bytes(data)  # the size is new
        yield bytes(data[: len(old)])  # or old


def test_a_torn_file_has_the_old_rows_or_the_new_ones_or_is_no_json(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(0, 24, 2):  # the end of the text moves through a sector
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, 130, 2_200).grown()
        world.add(f"odd-{'x' * 20 * number}")
        world.write()
        old, before = world.path.read_bytes(), dict(world.table.by_name)
        if number % 3:
            for more in range(1 + number % 4):
                world.add(f"next-{more}")
        else:
            world.add("next", size=1_300)  # zeros of a sector that is lost are all within a text
        world.write()
        new, after = world.path.read_bytes(), dict(world.table.by_name)
        assert world.whole.names == []
        assert read(world.copy.read_bytes()) == before
        for data in torn(old, new):
            try:
                found = read(data)
            except StoreCorrupt:
                outcomes.add("broken")
                continue
            assert found in (before, after)
            outcomes.add("old" if found == before else "new")
    assert outcomes == {"old", "new", "broken"}


def test_a_disk_writes_an_added_topic_behind_the_others(tmp_path: Path) -> None:
    disk, table = FileDisk(tmp_path / "store"), World(tmp_path).table
    inodes = []
    for number in range(5):
        table.set_topic(TopicConfig(topic_name=f"more-{number}"), 1)
        disk.write_text(PATH, table.dump())
        inodes.append((tmp_path / "store" / PATH).stat().st_ino)
        assert read((tmp_path / "store" / PATH).read_bytes()) == table.by_name
    disk.close()
    assert len(set(inodes[1:])) == 1  # the second one is written as a whole, too
