"""Checkpoints, and the wheel of the timers: what is written is read, at the places of Apache's."""

import struct

import pytest

from reliable_mq.broker_core.store import checkpoint, timer_checkpoint
from reliable_mq.broker_core.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from reliable_mq.broker_core.store.timer_checkpoint import (
    TimerCheckpoint,
    load_timer_checkpoint,
    save_timer_checkpoint,
)
from reliable_mq.broker_core.store.timer_wheel import EMPTY, PATH, SLOTS, Slot, TimerWheel
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

SLOT_SIZE = 32


def numbers(disk: MemoryDisk, path: str, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}q", disk.files()[path])


def test_a_checkpoint_has_apaches_form() -> None:
    disk = MemoryDisk()
    known = Checkpoint(
        commit_log_time_ms=1,
        consume_queue_time_ms=2,
        index_time_ms=3,
        master_flushed_offset=4,
        confirmed_offset=5,
    )
    save_checkpoint(disk, known)
    assert numbers(disk, "checkpoint", 6) == (1, 2, 3, 4, 5, 0)
    assert disk.size_of("checkpoint") == 4096
    assert load_checkpoint(disk) == known


def test_a_checkpoint_of_timers_has_apaches_form() -> None:
    disk = MemoryDisk()
    known = TimerCheckpoint(
        read_ms=1,
        log_end=2,
        queue_offset=3,
        master_queue_offset=4,
        state_version=5,
        changed_ms=6,
        counter=7,
        delivered_end=8,
    )
    save_timer_checkpoint(disk, known)
    assert numbers(disk, "config/timercheck", 9) == (1, 2, 3, 4, 5, 6, 7, 8, 0)
    assert load_timer_checkpoint(disk) == known


def test_what_is_not_there_or_cut_short_says_nothing() -> None:
    disk = MemoryDisk()
    assert load_checkpoint(disk) == Checkpoint()
    assert load_timer_checkpoint(disk) == TimerCheckpoint()
    disk.place_file(checkpoint.PATH, bytes(3) + b"\1" * 36)  # one byte short of five numbers
    disk.place_file(timer_checkpoint.PATH, b"\1" * 63)
    assert load_checkpoint(disk) == Checkpoint()
    assert load_timer_checkpoint(disk) == TimerCheckpoint()


@pytest.mark.parametrize("size", [0, 1, 40, 4095, 4097])
def test_a_file_of_another_size_is_made_anew(size: int) -> None:
    disk = MemoryDisk()
    disk.place_file(checkpoint.PATH, b"\1" * size)
    save_checkpoint(disk, Checkpoint(index_time_ms=9))
    assert disk.files()[checkpoint.PATH] == bytes(16) + (9).to_bytes(8) + bytes(4096 - 24)


def test_what_follows_the_fields_is_left_as_it_was() -> None:
    disk = MemoryDisk()
    disk.place_file(checkpoint.PATH, b"\7" * 4096)
    save_checkpoint(disk, Checkpoint())
    assert disk.files()[checkpoint.PATH] == bytes(40) + b"\7" * (4096 - 40)


@pytest.mark.parametrize(
    ("log_ms", "queue_ms", "safe_ms"),
    [(9000, 8000, 5000), (8000, 9000, 5000), (3000, 3000, 0), (3001, 9000, 1), (0, 9000, 0)],
)
def test_three_seconds_before_the_older_time_all_is_in_log_and_queues(
    log_ms: int, queue_ms: int, safe_ms: int
) -> None:
    known = Checkpoint(commit_log_time_ms=log_ms, consume_queue_time_ms=queue_ms)
    assert known.safe_time_ms == safe_ms


NOW = 1_700_000_000_000
"""A whole second, far from both ends of the wheel."""


def test_a_slot_is_kept_by_its_second_before_and_after_a_checkpoint() -> None:
    disk = MemoryDisk()
    wheel = TimerWheel(disk, 1000)
    wheel.set_slot(NOW, Slot(10, 20, 3))
    assert wheel.slot(NOW) == wheel.slot(NOW + 999) == Slot(10, 20, 3)
    assert wheel.slot(NOW - 1) == wheel.slot(NOW + 1000) == EMPTY
    work = wheel.begin_checkpoint()
    assert wheel.slot(NOW) == Slot(10, 20, 3), "while it is being written"
    wheel.set_slot(NOW + 1000, Slot(30, 30, 1))
    work()
    assert (wheel.slot(NOW), wheel.slot(NOW + 1000)) == (Slot(10, 20, 3), Slot(30, 30, 1))

    again = TimerWheel(disk, 1000)
    assert (again.slot(NOW), again.slot(NOW + 1000)) == (Slot(10, 20, 3), EMPTY)
    at = NOW // 1000 % SLOTS * SLOT_SIZE
    assert struct.unpack_from(">qqqii", disk.files()[PATH], at) == (NOW // 1000, 10, 20, 3, 0)


def test_slots_of_seven_days_there_and_back_share_no_place() -> None:
    assert SLOTS == 14 * 86_400
    wheel = TimerWheel(MemoryDisk(), 1000)
    later = NOW + SLOTS * 1000
    wheel.set_slot(NOW, Slot(1, 1, 1))
    wheel.set_slot(later, Slot(2, 2, 1))
    assert (wheel.slot(NOW), wheel.slot(later)) == (EMPTY, Slot(2, 2, 1))


@pytest.mark.parametrize("is_written", [False, True])
def test_an_entry_is_linked_behind_the_last_one_of_its_slot(is_written: bool) -> None:
    wheel = TimerWheel(MemoryDisk(), 1000)
    assert wheel.link(NOW, 10, 1) == EMPTY.last
    if is_written:
        wheel.begin_checkpoint()()
    assert wheel.link(NOW + 999, 20, 1) == 10
    assert wheel.link(NOW, 30, -1) == 20
    assert wheel.slot(NOW) == Slot(10, 30, 1)
    later = NOW + SLOTS * 1000  # the same place, another time
    assert wheel.link(later, 40, 1) == EMPTY.last
    assert (wheel.slot(NOW), wheel.slot(later)) == (EMPTY, Slot(40, 40, 1))


def test_a_checkpoint_that_was_not_written_is_written_with_the_next() -> None:
    disk = MemoryDisk()
    wheel = TimerWheel(disk, 1000)
    wheel.set_slot(NOW, Slot(1, 1, 1))
    wheel.begin_checkpoint()  # its thread dies
    wheel.set_slot(NOW + 5000, Slot(2, 2, 1))
    wheel.begin_checkpoint()()
    again = TimerWheel(disk, 1000)
    assert (again.slot(NOW), again.slot(NOW + 5000)) == (Slot(1, 1, 1), Slot(2, 2, 1))
    assert wheel.begin_checkpoint()() is None


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 7, 2047])
def test_the_next_used_slot_is_found(is_written: bool, ahead: int) -> None:
    wheel = TimerWheel(MemoryDisk(), 1000)
    used = NOW + 1000 * ahead
    wheel.set_slot(used, Slot(1, 1, 1))
    if is_written:
        wheel.begin_checkpoint()()
    assert wheel.next_used(NOW, NOW + 10_000_000) == used
    assert wheel.next_used(NOW + 500, NOW + 10_000_000) == used
    assert wheel.next_used(NOW, used) == used
    assert wheel.next_used(used, used) == used


def test_a_search_ends_at_its_end_and_after_so_many_slots() -> None:
    wheel = TimerWheel(MemoryDisk(), 1000)
    assert wheel.next_used(NOW, NOW + 5000) == NOW + 5000
    assert wheel.next_used(NOW, NOW - 5000) == NOW - 5000
    assert wheel.next_used(NOW, NOW + 9_000_000) == NOW + 2_048_000
    turn = (NOW // 1000 // SLOTS + 1) * SLOTS * 1000  # where the wheel begins anew
    assert wheel.next_used(turn - 3000, turn + 9000) == turn
    wheel.set_slot(turn, Slot(1, 1, 1))
    assert wheel.next_used(turn, turn + 9000) == turn


@pytest.mark.parametrize("size", [1, SLOT_SIZE, SLOTS * SLOT_SIZE - 1, SLOTS * SLOT_SIZE + 1])
def test_a_wheel_of_another_size_is_refused(size: int) -> None:
    disk = MemoryDisk()
    disk.open(PATH, size)
    with pytest.raises(StoreCorrupt, match=f"{size} bytes instead of {SLOTS * SLOT_SIZE}"):
        TimerWheel(disk, 1000)
