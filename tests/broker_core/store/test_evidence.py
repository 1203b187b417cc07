"""What the state of a disk proves about a bad place of the log, case by case."""

import pytest
from tests.broker_core.store.test_log_walk import SEGMENT, Written, some

from reliable_mq.broker_core.store.checkpoint import Checkpoint
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit, pack_unit
from reliable_mq.broker_core.store.damage import DamagedRange
from reliable_mq.broker_core.store.deletions import Deletions
from reliable_mq.broker_core.store.evidence import Evidence
from reliable_mq.broker_core.store.log_walk import FoundRecord, record_at
from reliable_mq.broker_core.store.new_units import NewUnits
from reliable_mq.broker_core.store.progress import StoreProgress
from reliable_mq.errors import StoreCorrupt, StoreError
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import RECORD_SIZE_MIN, encode_blank

NEVER = 0
LATE = 1 << 40


def evidence(
    written: Written,
    note: StoreProgress | None = None,
    *,
    time_ms: int = NEVER,
    was_killed: bool = True,
    boot_id: str = "now",
    queue_end: int = 0,
) -> Evidence:
    """Return evidence with a queue that knows the log up to an offset, and an empty queue."""
    queues = {("t", number): ConsumeQueue(MemoryDisk(), "t", number, 100) for number in (0, 1)}
    if queue_end:
        queues["t", 1].extend(0, pack_unit(queue_end - 100, 100, 0))
    checkpoint = Checkpoint(commit_log_time_ms=time_ms)
    return Evidence(written.log, queues, checkpoint, note, was_killed, boot_id, {}, Deletions(), 5)


def note(log_end: int = 0, *, sync: bool = False, boot_id: str = "before") -> StoreProgress:
    return StoreProgress(
        boot_id=boot_id, is_sync_flush=sync, log_end=log_end, last_record=0, last_time_ms=LATE
    )


def found(written: Written, number: int) -> FoundRecord:
    record = record_at(written.log, written.places[number])
    assert record is not None
    return record


def test_a_note_counts_unless_another_broker_wrote_a_later_checkpoint() -> None:
    written = some()
    assert evidence(written).newest_progress is None
    known = note()
    for time_ms, is_newest in ((LATE - 1, True), (LATE, True), (LATE + 1, False)):
        proof = evidence(written, known, time_ms=time_ms)
        assert proof.newest_progress == (known if is_newest else None)


@pytest.mark.parametrize(
    ("noted", "now", "is_same"), [("a", "a", True), ("a", "b", False), ("", "", False)]
)
def test_a_machine_has_run_on_if_its_boot_is_the_noted_one(
    noted: str, now: str, is_same: bool
) -> None:
    assert evidence(some(), note(boot_id=noted), boot_id=now).is_same_boot is is_same
    assert not evidence(some(), boot_id=now).is_same_boot


def test_after_a_clean_stop_every_record_was_durable() -> None:
    written = some()
    assert evidence(written, note(), was_killed=False).was_durable(found(written, 5))
    assert not evidence(written, note()).was_durable(found(written, 5))


def test_a_record_before_the_time_of_the_checkpoint_was_durable() -> None:
    written = some()
    proof = evidence(written, note(), time_ms=10)
    durable = [proof.was_durable(found(written, number)) for number in range(6)]
    assert durable == [True, True, True, False, False, False], "they are stored from 7 ms on"


def test_without_a_note_only_the_checkpoint_counts() -> None:
    written = some()
    assert evidence(written).was_durable(found(written, 5)), "nothing says that it was not"
    assert not evidence(written, time_ms=1).was_durable(found(written, 5))


def test_a_record_before_the_end_of_the_note_was_durable() -> None:
    written = some()
    proof = evidence(written, note(written.places[3]))
    durable = [proof.was_durable(found(written, number)) for number in range(6)]
    assert durable == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("sync", "boot_id", "is_durable"),
    [(True, "now", True), (True, "before", True), (False, "now", True), (False, "before", False)],
)
def test_a_record_in_a_queue_was_durable_if_queues_have_only_such_or_the_machine_ran_on(
    sync: bool, boot_id: str, is_durable: bool
) -> None:
    written = some()
    known = note(sync=sync, boot_id=boot_id)
    proof = evidence(written, known, queue_end=written.places[3])
    durable = [proof.was_durable(found(written, number)) for number in range(6)]
    assert durable == [is_durable] * 3 + [False] * 3
    assert not evidence(written, known).was_durable(found(written, 0)), "no queue has it"


def test_a_later_record_proves_that_a_place_was_written_if_it_was_durable() -> None:
    written = some()
    written.destroy(1)
    for known, is_proof in (
        (note(written.places[2]), False),
        (note(written.places[2] + 1), True),
        (note(boot_id="now"), True),
    ):
        later = evidence(written, known).written_behind(written.places[1])
        assert (later.offset if later else None) == (written.places[2] if is_proof else None)
    whole = evidence(written, note(boot_id="now"))
    assert whole.written_behind(written.places[5]) is None


def test_the_log_goes_on_at_the_next_record_of_the_segment() -> None:
    written = some()
    written.destroy(0)
    assert evidence(written, note(boot_id="now")).next_valid_offset(0) == written.places[1]
    assert evidence(written, note()).next_valid_offset(0) == -1, (
        "nothing proves that it was durable"
    )


def test_the_log_goes_on_at_the_blank_of_the_segment_if_a_later_one_has_records() -> None:
    written = some()
    last = max(number for number, place in enumerate(written.places) if place < SEGMENT)
    written.destroy(last)
    proof = evidence(written, note(boot_id="now"))
    assert proof.next_valid_offset(written.places[last]) == written.blank(0)
    written.overwrite(written.blank(0), bytes(8))
    with pytest.raises(StoreCorrupt, match=f"no valid record at {written.places[last]} .*behind"):
        proof.next_valid_offset(written.places[last])


def test_a_segment_may_be_a_blank_after_its_first_record() -> None:
    """Given that the blank itself begins the place that is asked about."""
    written = some()
    written.overwrite(SEGMENT, encode_blank(SEGMENT) + bytes(SEGMENT - 8))
    with pytest.raises(StoreCorrupt, match="no valid record at 0"):
        evidence(written, note(boot_id="now")).next_valid_offset(SEGMENT)


def test_the_log_ends_with_its_last_segment_and_its_last_record() -> None:
    written = some()
    proof = evidence(written, note(boot_id="now"))
    assert proof.next_valid_offset(written.log.capacity_end) == -1
    assert proof.next_valid_offset(written.log.end) == -1
    written.destroy(5)
    assert proof.next_valid_offset(written.places[5]) == -1


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_a_record_of_a_newer_format_is_refused_unless_all_else_is_sound(number: int) -> None:
    """A lone damaged byte is likelier than one record of a newer format among ours."""
    written = some()
    proof = evidence(written, note(boot_id="now"))
    place = written.places[number]
    written.overwrite(place + 4, bytes.fromhex("daa320af"))
    is_last = number == len(written.places) - 1
    if is_last:  # nothing follows it directly
        with pytest.raises(StoreError, match=f"the record at {place % SEGMENT} .*newer format"):
            proof.next_valid_offset(place)
    else:
        assert proof.next_valid_offset(place) > place
    written.overwrite(place + 88, b"\xff")
    with pytest.raises(StoreError, match="newer format"):
        proof.next_valid_offset(place)


class Rebuilt:
    """Units that a queue gets from the log, beside a queue that has some already."""

    def __init__(self, begin: int | None, known_until: int = 0, *units: QueueUnit) -> None:
        self.new = NewUnits(begin, known_until)
        self.queue = ConsumeQueue(MemoryDisk(), "t", 0, 100)
        for number, unit in enumerate(units):
            self.queue.extend(number, pack_unit(*unit))

    def units(self) -> list[tuple[int, int, int]]:
        data = bytes(self.new.units)
        whole = [data[at : at + 20] for at in range(0, len(data), 20)]
        return [
            (int.from_bytes(u[:8]), int.from_bytes(u[8:12]), int.from_bytes(u[12:])) for u in whole
        ]


SIZE = RECORD_SIZE_MIN


def record(offset: int, size: int = 200) -> FoundRecord:
    return FoundRecord(offset, size, memoryview(b""), 0)


def test_units_of_records_follow_each_other() -> None:
    rebuilt = Rebuilt(None)
    assert (rebuilt.new.begin, rebuilt.new.end, rebuilt.new.known_until) == (None, None, 0)
    rebuilt.new.begin_at(4)
    rebuilt.new.add(record(1000), 4, 9)
    rebuilt.new.add(record(1300), 5, 8)
    assert rebuilt.units() == [(1000, 200, 9), (1300, 200, 8)]
    assert (rebuilt.new.begin, rebuilt.new.end, rebuilt.new.known_until) == (4, 6, 1500)
    rebuilt.new.begin_at(0)
    assert (rebuilt.units(), rebuilt.new.begin, rebuilt.new.end) == ([], 0, 0)


@pytest.mark.parametrize(("count", "is_room"), [(1, True), (3, True), (4, False)])
def test_damage_explains_as_many_messages_as_fit_in_it(count: int, is_room: bool) -> None:
    rebuilt = Rebuilt(2, 1000)
    damage = [DamagedRange(1000, 1000 + SIZE), DamagedRange(5000, 5000 + 3 * SIZE - 1)]
    assert rebuilt.new.bridge(2 + count, damage, None) is is_room
    places = [1000, 5000, 5000 + SIZE][:count] if is_room else []
    assert rebuilt.units() == [(place, SIZE, 0) for place in places]
    assert rebuilt.new.end == 2 + len(places)
    if places:
        assert rebuilt.new.known_until == places[-1] + SIZE


def test_damage_before_what_the_queue_knows_explains_nothing() -> None:
    rebuilt = Rebuilt(2, 1000 + SIZE)
    assert not rebuilt.new.bridge(3, [DamagedRange(1000, 1000 + SIZE)], None)
    assert rebuilt.new.bridge(3, [DamagedRange(1000, 1000 + 2 * SIZE)], None)
    assert rebuilt.units() == [(1000 + SIZE, SIZE, 0)]


def test_a_number_before_the_next_one_is_never_bridged() -> None:
    damage = [DamagedRange(0, 10_000)]
    assert not Rebuilt(None).new.bridge(3, damage, None)
    assert not Rebuilt(4).new.bridge(3, damage, None)
    rebuilt = Rebuilt(4)
    assert rebuilt.new.bridge(4, damage, None)
    assert rebuilt.units() == []


KNOWN = [QueueUnit(100 * number, 100, 7) for number in range(5)]


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (DamagedRange(0, 500), [0, 1, 2, 3]),
        (DamagedRange(0, 299), [0, 1]),  # a unit must lie in it whole
        (DamagedRange(1, 500), []),
    ],
)
def test_units_of_the_queue_that_lie_in_damage_are_kept(
    damage: DamagedRange, kept: list[int]
) -> None:
    rebuilt = Rebuilt(0, 0, *KNOWN)
    is_bridged = rebuilt.new.bridge(4, [damage], rebuilt.queue)
    after = KNOWN[kept[-1]].commit_log_offset + 100 if kept else damage.begin
    room = (damage.end - after) // SIZE
    assert is_bridged is (4 - len(kept) <= room)
    if is_bridged:
        fillers = [(after + SIZE * n, SIZE, 0) for n in range(4 - len(kept))]
        assert rebuilt.units() == [*(tuple(KNOWN[number]) for number in kept), *fillers]


def test_the_last_units_of_a_queue_are_kept_while_they_lie_in_damage() -> None:
    rebuilt = Rebuilt(2, 200, *KNOWN)
    rebuilt.new.keep_damaged([DamagedRange(150, 400)], rebuilt.queue)
    assert rebuilt.units() == [tuple(KNOWN[2]), tuple(KNOWN[3])]
    assert (rebuilt.new.end, rebuilt.new.known_until) == (4, 400)
    nowhere = Rebuilt(None, 0, *KNOWN)
    nowhere.new.keep_damaged([DamagedRange(0, 500)], nowhere.queue)
    assert nowhere.units() == []


@pytest.mark.parametrize(
    "unit", [QueueUnit(199, 100, 0), QueueUnit(200, SIZE - 1, 0), QueueUnit(0, 0, 0)]
)
def test_a_unit_that_cannot_be_the_next_one_is_not_kept(unit: QueueUnit) -> None:
    rebuilt = Rebuilt(2, 200, KNOWN[0], KNOWN[1], unit)
    rebuilt.new.keep_damaged([DamagedRange(0, 500)], rebuilt.queue)
    assert rebuilt.units() == []


def test_nothing_is_kept_of_a_queue_that_begins_later_or_lacks_a_file() -> None:
    rebuilt = Rebuilt(0)
    rebuilt.queue.extend(1, pack_unit(*KNOWN[1]))
    rebuilt.new.keep_damaged([DamagedRange(0, 500)], rebuilt.queue)
    assert rebuilt.units() == []
