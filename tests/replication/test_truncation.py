"""A log is cut at a record, its end is kept, and a stop at any step loses nothing more."""

from random import Random

import msgspec
import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.role_note import RoleNote, load_role, save_role
from reliable_mq.broker_core.store.truncation import (
    FOLDER,
    carry_out_truncation,
    truncate,
)
from reliable_mq.errors import StoreError
from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk

SEGMENT_SIZE = 256 * 1024


def written_store(large: int = 40_000) -> tuple[MemoryDisk, list[int]]:
    """Return a stopped store of several segments, and where its records begin and end."""
    world = BrokerWorld()
    world.create_topic()
    ends = [0]
    for number in range(20):
        world.send(b"%02d" % number * (large // 2))
        ends.append(world.state.store.log.end)
    world.send(b"timed", TIMER_DELAY_MS="60000")
    world.pass_time(3_000)
    world.stop()
    return world.disk, ends


def bodies(disk: MemoryDisk) -> list[bytes]:
    world = BrokerWorld(disk)
    found = [record.body[:2] for record in world.records(TOPIC)]
    world.send(b"after")
    assert world.records(TOPIC)[-1].body == b"after"
    world.stop()
    return found


@pytest.mark.parametrize("kept", [1, 6, 7, 13, 20])
def test_what_is_behind_the_cut_is_gone_from_queues_and_kept_in_a_file(kept: int) -> None:
    disk, ends = written_store()
    note = truncate(disk, RoleNote(), ends[kept], SEGMENT_SIZE)

    assert note.truncate_to == -1
    assert bodies(disk) == [b"%02d" % number for number in range(kept)]
    if kept < 20:
        (name,) = disk.names(FOLDER)
        kept_aside = disk.files()[f"{FOLDER}/{name}"]
        assert all(b"%02d" % number * 1_000 in kept_aside for number in range(kept, 20))


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_stop_at_any_step_is_followed_by_the_whole_truncation(is_power_lost: bool) -> None:
    for step in range(steps_of_a_truncation()):
        disk, ends = written_store()
        save_role(disk, RoleNote(truncate_to=ends[6]))
        disk.stop_before, disk.torn = len(disk.operations) + step, 100
        with pytest.raises(MachineStopped):
            carry_out_truncation(disk, there(load_role(disk)), SEGMENT_SIZE)
        disk.kill()
        if is_power_lost:
            disk.lose_power(Random(step))
        carry_out_truncation(disk, there(load_role(disk)), SEGMENT_SIZE)
        assert there(load_role(disk)).truncate_to == -1
        assert bodies(disk) == [b"%02d" % number for number in range(6)], step
        surplus = [disk.files()[f"{FOLDER}/{name}"] for name in disk.names(FOLDER)]
        assert any(
            all(b"%02d" % number * 1_000 in each for number in range(6, 20)) for each in surplus
        ), step


def steps_of_a_truncation() -> int:
    disk, ends = written_store()
    save_role(disk, RoleNote(truncate_to=ends[6]))
    before = len(disk.operations)
    carry_out_truncation(disk, there(load_role(disk)), SEGMENT_SIZE)
    steps = len(disk.operations) - before
    assert steps > 10
    return steps


def there(note: RoleNote | None) -> RoleNote:
    assert note is not None
    return note


@pytest.mark.parametrize("change", [1, -1, 10_000_000])
def test_a_cut_inside_a_record_or_behind_the_log_changes_nothing(change: int) -> None:
    disk, ends = written_store()
    before = len(disk.operations)
    with pytest.raises(StoreError, match="offset"):
        truncate(disk, RoleNote(), ends[6] + change, SEGMENT_SIZE)
    assert len(disk.operations) == before
    assert len(bodies(disk)) == 20


def test_without_room_for_the_removed_bytes_nothing_is_removed() -> None:
    disk, ends = written_store()
    disk.fail_at = len(disk.operations) + 3
    with pytest.raises(OSError, match="Input/output"):
        truncate(disk, RoleNote(), ends[6], SEGMENT_SIZE)
    disk.fail_at = None
    log = CommitLog(disk, SEGMENT_SIZE)
    assert log.capacity_end > ends[19]
    log.close()


def test_a_note_that_cannot_be_read_is_no_lower_epoch() -> None:
    disk = MemoryDisk()
    disk.write_text("config/brokerRole.json", "{")
    with pytest.raises(StoreError, match=r"brokerRole\.json"):
        load_role(disk)
    save_role(disk, RoleNote(epoch=3))
    assert load_role(disk) == msgspec.structs.replace(RoleNote(), epoch=3)
