"""The files of the timers together: chains of a slot, checkpoints, and what a start finds."""

import errno

import pytest
from tests.broker_core.store.store_life import flush, message, new_store

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_checkpoint import (
    PATH,
    TimerCheckpoint,
    load_timer_checkpoint,
    save_timer_checkpoint,
)
from reliable_mq.broker_core.store.timer_log import DEFAULT, DELETE, FOLDER, SIZE, TimerEntry
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.broker_core.store.timer_wheel import EMPTY, SLOTS, Slot
from reliable_mq.broker_core.store.timer_wheel import PATH as WHEEL
from reliable_mq.testing.memory_disk import MemoryDisk

NOW = 1_700_000_000_000
SECOND = 1000
FILE_SIZE = 10 * SIZE + 16
SLOT = NOW + 5 * SECOND


class Timers:
    """A store with timed messages, and the files of its timers, open."""

    def __init__(self, count: int = 0, *, sync: bool = True) -> None:
        self.disk = MemoryDisk()
        self.sync = sync
        self.store: MessageStore = new_store(self.disk, sync=sync)
        self.store.open()
        self.places: list[int] = []
        self.send(count)
        self.timers = self.opened()

    def send(self, count: int) -> None:
        for _ in range(count):
            place = self.store.append(message(TIMER_TOPIC, 0, b"t" * 100), NOW)
            self.places.append(place.commit_log_offset)
        flush(self.store, sync=self.sync)

    def opened(self, now_ms: int = NOW) -> TimerStore:
        timers = TimerStore(
            self.disk, file_size=FILE_SIZE, precision_ms=SECOND, is_sync_flush=self.sync
        )
        assert (timers.is_open, timers.queue_offset, timers.read_ms) == (False, 0, 0)
        timers.open(self.store, now_ms)
        assert timers.is_open
        return timers

    def put(self, slot_ms: int = SLOT, magic: int = DEFAULT, number: int = 0) -> int:
        place = self.places[number] if self.places else 0
        return self.timers.add_entry(TimerEntry(-1, magic, NOW, slot_ms, place, 9, 0, slot_ms))

    def take_up(self, count: int, slot_ms: int = SLOT) -> list[int]:
        """Put the entries of the next messages."""
        begin = self.timers.queue_offset
        positions = [self.put(slot_ms, number=number) for number in range(begin, begin + count)]
        self.timers.flush()
        self.timers.queue_offset += count
        return positions

    def checkpoint(self) -> None:
        self.timers.begin_checkpoint(self.store, NOW)()

    def chain(self, slot_ms: int = SLOT, of: TimerStore | None = None) -> list[int]:
        return [position for position, _ in (of or self.timers).chain(slot_ms)]

    def noted(self) -> TimerCheckpoint:
        return load_timer_checkpoint(self.disk)


def test_timers_begin_with_empty_files_now() -> None:
    world = Timers(2)
    assert world.noted() == TimerCheckpoint(read_ms=NOW, changed_ms=NOW)
    assert (world.timers.read_ms, world.timers.queue_offset) == (NOW, 0)
    assert world.timers.delivered_end == 0
    assert world.timers.room_end_ms == NOW + SLOTS * SECOND
    assert world.timers.slot(SLOT) == EMPTY
    assert world.chain() == []


def test_entries_of_a_slot_are_a_chain_the_newest_first() -> None:
    world = Timers(3)
    positions = world.take_up(2)
    positions.append(world.put(magic=DELETE))
    other = world.put(SLOT + SECOND)
    world.timers.flush()
    assert positions == [0, SIZE, 2 * SIZE]
    assert world.chain() == positions[::-1]
    assert world.chain(SLOT + SECOND) == [other]
    assert world.timers.slot(SLOT) == Slot(0, 2 * SIZE, 1), "a recall takes one away"
    entry = world.timers.entry(positions[1])
    assert entry is not None
    assert (entry.previous, entry.due_ms, entry.magic) == (0, SLOT, DEFAULT)
    assert world.timers.entry(4 * SIZE) is None
    assert world.timers.next_used(NOW, SLOT + 9 * SECOND) == SLOT


def test_a_chain_that_leads_forward_is_damaged_and_ends() -> None:
    world = Timers(3)
    positions = world.take_up(3)
    for wrong in (positions[1], positions[2]):
        file = world.disk.open(f"{FOLDER}/{0:020d}", FILE_SIZE)
        file.write(positions[1] + 4, (wrong.to_bytes(8),))
        assert world.chain() == [positions[2], positions[1]]


@pytest.mark.parametrize(
    ("kept", "slot"),
    [
        ((), EMPTY),
        ((0,), Slot(0, 0, 1)),
        ((2,), Slot(2, 2, 1)),
        ((1, 3), Slot(1, 3, 2)),
        ((0, 1, 2), Slot(0, 2, 3)),
        ((0, 1, 2, 3), Slot(0, 3, 4)),
    ],
)
def test_what_leaves_a_slot_is_in_no_chain_and_the_rest_stays(
    kept: tuple[int, ...], slot: Slot
) -> None:
    world = Timers(4)
    world.take_up(4)
    world.timers.leave(SLOT, lambda position, _: position // SIZE in kept)
    first, last, count = slot
    assert world.chain() == [number * SIZE for number in reversed(kept)]
    assert world.timers.slot(SLOT) == (
        Slot(first * SIZE, last * SIZE, count) if kept else Slot(-1, -1, 0)
    )
    for number in range(4):
        entry = world.timers.entry(number * SIZE)
        assert entry is not None
        assert entry.slot_ms == (SLOT if number in kept else NOW - SECOND)


def test_a_slot_that_nothing_leaves_is_not_written() -> None:
    world = Timers(2)
    world.take_up(2)
    begin = len(world.disk.operations)
    world.timers.leave(SLOT, lambda *_: True)
    assert world.disk.operations[begin:] == []


def test_a_checkpoint_is_due_for_what_was_taken_up_or_delivered() -> None:
    world = Timers(3)
    timers = world.timers
    assert not timers.needs_checkpoint(world.store, 0)
    position = world.put()
    timers.queue_offset = 1
    assert not timers.needs_checkpoint(world.store, 0), "an entry waits for room"
    timers.flush()
    assert (position, timers.needs_checkpoint(world.store, 0)) == (0, True)
    world.checkpoint()
    assert not timers.needs_checkpoint(world.store, 0)
    timers.advance(NOW + 3 * SECOND, 50)
    assert (timers.read_ms, timers.delivered_end) == (NOW + 3 * SECOND, 50)
    due = [timers.needs_checkpoint(world.store, NOW + n * SECOND) for n in (-1, 0, 2, 3)]
    assert due == [False, True, True, False]
    world.checkpoint()
    assert not timers.needs_checkpoint(world.store, NOW + 2 * SECOND)
    assert world.noted() == TimerCheckpoint(
        read_ms=NOW + 3 * SECOND,
        log_end=SIZE,
        queue_offset=1,
        master_queue_offset=1,
        changed_ms=NOW,
        counter=2,
        delivered_end=50,
    )


def test_timers_that_are_not_open_need_no_checkpoint() -> None:
    world = Timers(1)
    closed = TimerStore(MemoryDisk(), file_size=FILE_SIZE, precision_ms=SECOND, is_sync_flush=True)
    closed.queue_offset = 7
    assert not closed.needs_checkpoint(world.store, NOW)


def test_a_checkpoint_survives_a_start() -> None:
    world = Timers(3)
    positions = world.take_up(2)
    world.timers.advance(NOW + SECOND, 77)
    world.checkpoint()
    world.timers.close()
    assert set(world.disk.opened.values()) >= {0}
    assert world.disk.opened[WHEEL] == world.disk.opened[f"{FOLDER}/{0:020d}"] == 0
    again = world.opened(NOW + 9 * SECOND)
    assert (again.queue_offset, again.read_ms, again.delivered_end) == (2, NOW + SECOND, 77)
    assert world.chain(of=again) == positions[::-1]


def test_the_log_of_deliveries_ends_with_the_commit_log() -> None:
    world = Timers(1)
    world.timers.advance(NOW, 10**9)
    world.checkpoint()
    assert world.opened().delivered_end == world.store.log.end


@pytest.mark.parametrize(("sync", "is_synced"), [(True, False), (False, True)])
def test_messages_that_may_not_be_durable_are_synced_before_a_checkpoint_claims_them(
    sync: bool, is_synced: bool
) -> None:
    world = Timers(20, sync=sync)
    world.take_up(2)
    for segments in (world.store.log.segment_starts, world.store.log.segment_starts[-1:]):
        begin = len(world.disk.operations)
        world.disk.looks = []
        world.checkpoint()
        paths = [f"commitlog/{first:020d}" for first in segments]
        synced = [each.path for each in world.disk.operations[begin:] if each.verb == "sync"]
        assert [path for path in synced if path.startswith("commitlog")] == paths * is_synced
        released = [each.path for each in world.disk.looks if each.verb == "release"]
        assert [path for path in released if path.startswith("commitlog")] == paths


def test_a_checkpoint_syncs_the_log_before_the_wheel_and_the_wheel_before_the_note() -> None:
    world = Timers(2)
    world.take_up(2)
    begin = len(world.disk.operations)
    world.checkpoint()
    synced = [each.path for each in world.disk.operations[begin:] if each.verb == "sync"]
    assert synced == [f"{FOLDER}/{0:020d}", WHEEL, PATH]


def test_without_room_for_a_checkpoint_the_last_one_stays_valid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Timers(2)
    world.take_up(2)
    world.disk.fail_at, world.disk.error = len(world.disk.operations) + 1, errno.ENOSPC
    world.checkpoint()
    assert "no room for a timer checkpoint" in caplog.text
    assert world.noted().queue_offset == 0


def test_a_checkpoint_that_fails_for_another_reason_is_an_error() -> None:
    world = Timers(2)
    world.take_up(2)
    world.disk.fail_at = len(world.disk.operations) + 1
    with pytest.raises(OSError, match="Input/output"):
        world.checkpoint()


def test_entries_behind_a_checkpoint_are_cut_off_and_taken_up_again() -> None:
    world = Timers(5)
    positions = world.take_up(2)
    world.checkpoint()
    world.take_up(3)
    again = world.opened()
    assert (again.queue_offset, world.chain(of=again)) == (2, positions[::-1])
    assert again.entry(2 * SIZE) is None


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_wheel_that_is_ahead_of_the_note_is_set_back(before: int) -> None:
    """Given that a crash came between the wheel and the note of a checkpoint."""
    world = Timers(8)
    positions = world.take_up(before)
    other = world.take_up(2, SLOT + SECOND)
    world.checkpoint()
    note = world.noted()
    world.take_up(2)
    late = world.put(magic=DELETE, number=before + 4)
    world.timers.flush()
    world.timers.queue_offset += 1
    world.checkpoint()
    assert world.timers.slot(SLOT).last == late
    save_timer_checkpoint(world.disk, note)

    again = world.opened()

    assert world.chain(of=again) == positions[::-1]
    expected = Slot(positions[0], positions[-1], before) if positions else EMPTY
    assert again.slot(SLOT) == expected
    assert again.slot(SLOT + SECOND) == Slot(other[0], other[-1], 2)
    third = world.opened()
    assert third.slot(SLOT) == expected, "durably: the entries are gone"


def test_a_note_of_apaches_broker_may_be_older_than_the_last_entry() -> None:
    world = Timers(5)
    world.take_up(3)
    world.checkpoint()
    note = world.noted()
    for offset, master, taken in ((1, 1, 3), (4, 4, 4), (4, 1, 3), (1, 4, 3), (99, 99, 5)):
        note.queue_offset, note.master_queue_offset = offset, master
        save_timer_checkpoint(world.disk, note)
        assert world.opened().queue_offset == taken


def test_the_last_entry_counts_only_if_its_message_is_a_timed_one() -> None:
    world = Timers(3)
    place = world.store.append(message("orders", 0, b"x"), NOW)
    flush(world.store)
    world.places[2] = place.commit_log_offset
    world.take_up(3)
    world.timers.queue_offset = 1
    world.checkpoint()
    assert world.opened().queue_offset == 1


def test_messages_that_expired_are_not_taken_up() -> None:
    world = Timers(40)
    world.store.upkeep.flush()
    world.store.expire(2)
    for file, path in world.store.upkeep.trim_some(world.store.log.start, 9):
        file.close()
        world.disk.remove(path)
    queue = world.store.queue(TIMER_TOPIC, 0)
    assert queue is not None
    assert queue.first > 0
    assert world.opened().queue_offset == queue.first
    world.disk.remove(PATH)
    again = world.opened(NOW + SECOND)
    assert (again.queue_offset, again.read_ms) == (queue.first, NOW + SECOND)
    assert world.noted().queue_offset == world.noted().master_queue_offset == queue.first
    assert again.delivered_end == world.noted().delivered_end == world.store.log.start


@pytest.mark.parametrize(
    ("read_ms", "is_kept"),
    [
        (0, False),
        (-SECOND, False),
        (NOW + 1, False),  # no whole second
        (SECOND, True),
        (NOW, True),
        (NOW + SLOTS * SECOND, True),
        (NOW + SLOTS * SECOND + SECOND, False),
    ],
)
def test_a_note_with_a_time_that_cannot_be_is_as_good_as_none(read_ms: int, is_kept: bool) -> None:
    world = Timers(3)
    world.take_up(2)
    world.checkpoint()
    note = world.noted()
    note.read_ms = read_ms
    save_timer_checkpoint(world.disk, note)
    again = world.opened()
    assert again.queue_offset == (2 if is_kept else 0)
    assert again.read_ms == (read_ms if is_kept else NOW)
    assert again.slot(SLOT).waiting == (2 if is_kept else 0)


@pytest.mark.parametrize("count", [1, 10, 11])
@pytest.mark.parametrize("lost", ["log", "wheel", "neither"])
def test_a_note_without_its_files_is_as_good_as_none(
    lost: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = Timers(count)
    world.take_up(count)
    world.checkpoint()
    newest = world.disk.names(FOLDER)[-1]
    if lost == "log":
        world.disk.place_file(f"{FOLDER}/{newest}", b"")
    elif lost == "wheel":
        world.disk.place_file(WHEEL, b"")
    again = world.opened()
    assert again.queue_offset == (count if lost == "neither" else 0)
    assert ("timer files are missing" in caplog.text) == (lost != "neither")
    if lost != "neither":
        assert world.disk.names(FOLDER) == []
        assert again.slot(SLOT) == EMPTY


def test_entries_expire_with_their_messages() -> None:
    world = Timers(25)
    world.take_up(25)
    assert not world.timers.is_expired(0)
    world.store.expire(2)
    world.checkpoint()
    start = FILE_SIZE
    assert world.disk.names(FOLDER)[0] == f"{start:020d}"
    assert world.timers.is_expired(start - 1)
    assert not world.timers.is_expired(start)
    assert world.chain()[-1] == start
