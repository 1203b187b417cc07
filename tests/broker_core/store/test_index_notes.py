"""An index from notes of messages is the one from the log, byte by byte."""

from itertools import accumulate, chain, repeat
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker_core.store.test_message_index import (
    ANY,
    ENTRIES,
    IPV4,
    IPV6,
    KEYS,
    NOW_MS,
    SLOTS,
    TOPIC,
    alike,
    files_as_the_format_says,
    many_alike,
)

from reliable_mq.broker_core.store import index_notes
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.index_notes import IndexNotes
from reliable_mq.broker_core.store.message_index import FOLDER, IndexSizes, MessageIndex
from reliable_mq.errors import InvariantBroken
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import Record
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_form import RecordForm

PREFIX = "7F0000010A2C18B4AAC25B8B"
AROUND = st.lists(ANY | KEYS | st.just("UNIQ_KEY\x01one-more\x02"), max_size=3).map("".join)
KEY = (
    st.integers(0, 2**32 - 1).map(lambda number: f"{PREFIX}{number:08X}")
    | st.text("0123456789abcdefXYZ", min_size=32, max_size=32)
    | st.sampled_from(["1", "k" * 8, "k" * 9, "m" * 9, "k" * 64, "k" * 65])
)


class Stored(NamedTuple):
    """Messages that are stored together; with a form as columns, else one by one."""

    form: RecordForm | None
    keys: list[str]
    messages: list[Record]


@st.composite
def columns(draw: st.DrawFn) -> Stored:
    """Draw messages that differ only in place and unique key."""
    drawn = draw(st.lists(KEY, min_size=1, max_size=9))
    keys = [key for key in drawn if len(key) == len(drawn[0])]
    before, behind = f"{draw(AROUND)}UNIQ_KEY\x01", f"\x02{draw(AROUND)}"
    topic, time_ms = draw(TOPIC), NOW_MS + draw(st.integers(-2000, 5000))
    host = draw(st.sampled_from([IPV4, IPV6]))
    parts = before.encode(), behind.encode()
    form = RecordForm(topic.encode(), 0, 0, host, IPV4, 0, parts, len(keys[0]), 0)
    messages = [
        Record(
            topic=topic,
            body=b"b" * draw(st.integers(0, 200)),
            properties=f"{before}{key}{behind}".encode(),
            born_host=host,
            store_host=IPV4,
            store_time_ms=time_ms,
        )
        for key in keys
    ]
    return Stored(form, keys, messages)


ALONE = alike().map(lambda messages: Stored(None, [], messages))
HISTORY = st.lists(columns() | columns() | ALONE, min_size=1, max_size=8)


class World:
    """A log, its index, and what was stored."""

    def __init__(self, segment_size: int = 65_536) -> None:
        self.disk = MemoryDisk()
        self.log = CommitLog(self.disk, segment_size)
        self.index = MessageIndex(self.disk, self.log, IndexSizes(SLOTS, ENTRIES))
        self.messages: list[Record] = []

    def store(self, stored: Stored, *, is_noted: bool = True) -> None:
        """Append what comes together, write it, and note it if it came as columns."""
        sizes = [len(encode_record(message)) for message in stored.messages]
        begin = self.log.room_for(sum(sizes))
        offsets = list(accumulate(sizes[:-1], initial=begin))
        for message, offset in zip(stored.messages, offsets, strict=True):
            message.commit_log_offset = offset
        self.log.add(b"".join(map(encode_record, stored.messages)))
        if stored.form is not None and is_noted:
            keys = [key.encode() for key in stored.keys]
            time_ms = stored.messages[0].store_time_ms
            self.index.notes.add(offsets, self.log.end, stored.form, keys, time_ms)
        batch = self.log.take_batch()
        assert batch is not None
        CommitLog.write_batch(batch)
        self.log.mark_durable(batch.end)
        self.messages += stored.messages
        self.index.notes.invariants()

    def list_until(self, end: int) -> list[bytes]:
        """List everything before a log offset; return the index files."""
        while self.index.indexed < end:
            self.index.advance(end, NOW_MS)
            self.index.notes.invariants()
        return self.files()

    def files(self) -> list[bytes]:
        """Return the index files."""
        return [self.disk.files()[f"{FOLDER}/{name}"] for name in self.disk.names(FOLDER)]


def run_of(count: int, properties: str = "UNIQ_KEY\x01{:032X}\x02TAGS\x01red\x02") -> Stored:
    """Return messages of one client."""
    messages = many_alike(count, properties)
    before, _, behind = properties.partition("{:032X}")
    parts = before.encode(), behind.encode()
    form = RecordForm(b"bench", 0, 0, IPV4, IPV4, 0, parts, 32, 0)
    return Stored(form, [f"{number:032X}" for number in range(count)], messages)


@settings(max_examples=60, deadline=None)  # an example is a whole log
@given(HISTORY, st.lists(st.integers(0, 8), max_size=3), st.sets(st.integers(0, 8)))
def test_an_index_from_notes_is_byte_by_byte_what_the_format_says(
    history: list[Stored], stops: list[int], unnoted: set[int]
) -> None:
    world = World()
    for number, stored in enumerate(history):
        world.store(stored, is_noted=number not in unnoted)
        if number in stops:
            world.list_until(world.log.end)
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)
    assert world.index.notes.count == 0


@pytest.mark.parametrize("count", [15, 16, 255, 257, 1100])
def test_a_long_run_is_listed_whole_whatever_it_is_cut_into(count: int) -> None:
    world = World(segment_size=2_000_000)
    runs = [run_of(count), run_of(1), run_of(count, "UNIQ_KEY\x01{:032X}\x02KEYS\x01a b\x02")]
    for run in runs:
        world.store(run)
    assert world.list_until(world.log.end) == files_as_the_format_says(chain(*(r[2] for r in runs)))


def test_messages_with_many_constant_keys_are_read_from_the_log() -> None:
    keys = " ".join(f"k{number}" for number in range(40))
    world = World()
    world.store(run_of(9, f"UNIQ_KEY\x01{{:032X}}\x02KEYS\x01{keys}\x02"))
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)


def test_what_has_no_room_for_a_note_is_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_notes, "_NOTED_MAX", 20)
    world = World()
    for _ in range(5):
        world.store(run_of(9))
    assert world.index.notes.count == 27
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)


def test_only_what_is_visible_is_listed_from_notes() -> None:
    world = World()
    world.store(run_of(9))
    first_end = world.log.end
    world.store(run_of(9))
    assert world.list_until(first_end) == files_as_the_format_says(world.messages[:9])
    assert world.index.notes.count == 9
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)


def test_a_note_is_not_used_if_only_a_part_of_it_is_visible() -> None:
    world = World()
    world.store(run_of(9))
    until = world.messages[4].commit_log_offset
    assert world.list_until(until) == files_as_the_format_says(world.messages[:4])
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)


def test_a_slice_goes_on_with_records_that_have_no_note() -> None:
    world = World(segment_size=400_000)
    world.store(run_of(200))
    world.store(run_of(20), is_noted=False)
    world.store(run_of(20))
    assert world.list_until(world.log.end) == files_as_the_format_says(world.messages)


def test_a_slice_from_notes_that_found_no_room_lists_nothing_twice() -> None:
    runs = [run_of(16) for _ in range(12)]
    intact, failing = World(segment_size=400_000), World(segment_size=400_000)
    for run in runs:
        intact.store(run)
    expected = intact.list_until(intact.log.end)
    assert len(expected) == 2
    for run in runs:
        failing.store(run)
    operations = [operation.path for operation in intact.disk.operations]
    failing.disk.fail_at = operations.index(f"{FOLDER}/{intact.disk.names(FOLDER)[1]}")
    with pytest.raises(OSError, match="Input/output"):
        failing.list_until(failing.log.end)
    assert failing.index.indexed == 0
    assert failing.list_until(failing.log.end) == expected


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_short_slice_after_a_long_one_without_room_lists_nothing_twice(*, is_noted: bool) -> None:
    runs = [run_of(16) for _ in range(12)]
    intact, failing = World(segment_size=400_000), World(segment_size=400_000)
    for world in (intact, failing):
        for run in runs:
            world.store(run, is_noted=is_noted)
    expected = intact.list_until(intact.log.end)
    operations = [operation.path for operation in intact.disk.operations]
    failing.disk.fail_at = operations.index(f"{FOLDER}/{intact.disk.names(FOLDER)[1]}")
    with pytest.raises(OSError, match="Input/output"):
        failing.list_until(failing.log.end)
    while failing.index.indexed < failing.log.end:
        failing.index.advance(failing.log.end, NOW_MS, is_short=True)
    assert failing.files() == expected


@pytest.mark.parametrize(("count", "keys"), [(150, "a"), (150, "a b"), (3, "k " * 700)])
def test_the_rest_of_a_record_that_a_full_file_has_cut_is_listed_after_a_restart(
    count: int, keys: str
) -> None:
    run = f"UNIQ_KEY\x01{{:032X}}\x02KEYS\x01{keys}\x02TAGS\x01red\x02"
    intact = World(segment_size=400_000)
    intact.store(run_of(count, run))
    expected = intact.list_until(intact.log.end)
    operations = [operation.path for operation in intact.disk.operations]
    for name in intact.disk.names(FOLDER)[1:]:
        world = World(segment_size=400_000)
        world.store(run_of(count, run))
        world.disk.fail_at = operations.index(f"{FOLDER}/{name}")
        with pytest.raises(OSError, match="Input/output"):
            world.list_until(world.log.end)
        world.index = MessageIndex(world.disk, world.log, IndexSizes(SLOTS, ENTRIES))
        world.index.open(is_whole=True, was_killed=True, safe_time_ms=0)
        assert world.list_until(world.log.end) == expected


def test_notes_know_their_order() -> None:
    notes = IndexNotes()
    run = run_of(2)
    assert run.form is not None
    notes.add([10, 20], 30, run.form, [b"k" * 32] * 2, NOW_MS)
    notes.add([25], 40, run.form, [b"k" * 32], NOW_MS)
    with pytest.raises(InvariantBroken, match="I3: 3 messages in 2 notes"):
        notes.invariants()


def test_notes_before_an_offset_are_forgotten() -> None:
    notes = IndexNotes()
    run = run_of(2)
    assert run.form is not None
    for begin, size in zip(range(0, 90, 30), repeat(30)):
        notes.add([begin, begin + 10], begin + size, run.form, [b"k" * 32] * 2, NOW_MS)
    notes.forget_before(31)
    assert ([note.begin for note in notes], notes.count) == ([60], 2)
