"""A damaged record with sound ones behind it, in its segment: named, left alone, gone around.

What lies behind it keeps its place and its number, whatever else the crash or somebody's hand took.
With RELIABLE_MQ_SIM=20 the starts that are stopped themselves are stopped before every operation,
in 20 different lives.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from random import Random

import pytest
from tests.broker_core.store.store_life import QUEUES, SEGMENT_SIZE, Life, log_records, message

from reliable_mq.broker_core.store.log_walk import LogWalk
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.progress import PATH as PROGRESS_PATH
from reliable_mq.broker_core.store.progress import load_progress
from reliable_mq.broker_core.store.unit_reading import read_unit
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk
from reliable_mq.wire.record import Record, decode_record

LIVES = int(os.environ.get("RELIABLE_MQ_SIM", "0"))
SEEDS = range(LIVES or 4)
STEP = 1 if LIVES else 5

flush_types = pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
closed_and_killed = pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
garbages = pytest.mark.parametrize(
    ("at", "garbage"),
    [(0, b"\0" * 91), (2, b"\x7f"), (4, b"\xff"), (34, b"\xff"), (88, b"\xff\xff")],
    ids=["zeros", "size", "magic", "place", "body"],
)


def path_of(record: Record) -> str:
    place = record.commit_log_offset
    return f"commitlog/{place - place % SEGMENT_SIZE:020d}"


def damage(disk: MemoryDisk, record: Record, at: int, garbage: bytes) -> None:
    path = path_of(record)
    content = bytearray(disk.files()[path])
    begin = record.commit_log_offset % SEGMENT_SIZE + at
    content[begin : begin + len(garbage)] = garbage
    disk.place_file(path, bytes(content))


def grown_life(*, is_closed: bool, sync: bool = True, seed: int = 4) -> tuple[Life, list[Record]]:
    """Return a life of three segments or more, with some notes on the way, and its records."""
    life = Life(MemoryDisk(), seed=seed, sync=sync)
    store = life.open()
    while len(store.log.segment_starts) < 3:
        life.turn(store)
        if len(life.appended) % 5 == 0:
            store.checkpoint()
    life.turn(store)
    life.turn(store)
    records = log_records(store)
    store.upkeep.flush()  # what the tick does
    if is_closed:
        store.close()
    return life, records


def records_part(disk: MemoryDisk, end: int) -> dict[int, bytes]:
    """Return the log's files as far as they lie before a log offset."""
    files = {int(path[10:]): content for path, content in disk.files().items() if "log/" in path}
    return {first: files[first][: end - first] for first in files if first < end}


def check_around(life: Life, records: list[Record], broken: Sequence[Record]) -> MessageStore:
    """Open the store: what is not broken is where it was, with its number; the log is as it was."""
    end = records[-1].commit_log_offset + records[-1].size
    before = records_part(life.disk, end)
    store = life.open()
    rest = SEGMENT_SIZE - end % SEGMENT_SIZE  # a power loss may leave a blank alone behind them
    assert store.log.end in (end, end + rest)
    assert records_part(life.disk, end) == before
    of_queue = defaultdict(list)
    for record in records:
        sound = None if record in broken else record
        assert store.read_record(record.commit_log_offset) == sound
        if sound:
            of_queue[record.topic, record.queue_id].append(record)
    for key in QUEUES:
        queue = store.queue(*key)
        units = [queue.unit(number) for number in range(queue.first, queue.end)] if queue else []
        places = [unit.commit_log_offset for unit in units]
        assert places == sorted(set(places)), "Q1: log offsets increase"
        read = [read_unit(store.log, unit) for unit in units]
        assert list(filter(None, read)) == of_queue[key]
        for number, found in enumerate(read, queue.first if queue else 0):
            assert found is None or found.queue_offset == number
    store.log.damage.invariants()
    return store


def go_on(life: Life, store: MessageStore, records: list[Record], broken: Sequence[Record]) -> None:
    """Let the store live on, stop and start: what comes next follows what was there."""
    numbers = {key: queue.end for key in QUEUES if (queue := store.queue(*key))}
    end = store.log.end
    life.turn(store)
    added = [decode_record(found.buffer[found.at :]) for found in LogWalk(store.log, end, end)]
    assert added
    for record in added:
        key = (record.topic, record.queue_id)
        assert record.queue_offset == numbers.get(key, 0)
        numbers[key] = record.queue_offset + 1
    store.close()
    check_around(life, records + added, broken).close()


@flush_types
@closed_and_killed
@garbages
def test_every_damaged_record_is_named_and_gone_around(
    at: int, garbage: bytes, is_closed: bool, sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    life, records = grown_life(is_closed=is_closed, sync=sync)
    disk = life.disk
    for record in records[:-1]:
        life.disk = deepcopy(disk)
        damage(life.disk, record, at, garbage)
        caplog.clear()

        store = check_around(life, records, [record])

        for one in records:
            queue = store.queue(one.topic, one.queue_id)
            assert queue is not None
            unit = queue.unit(one.queue_offset)
            assert unit[:2] == (one.commit_log_offset, one.size), "its unit stays what it was"
        place = record.commit_log_offset
        (named,) = caplog.messages
        assert f"{path_of(record)}: no valid record at {place % SEGMENT_SIZE} " in named
        assert f"(log offset {place}), {record.size} bytes" in named
        go_on(life, store, records, [record])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_byte_of_a_record_may_flip_and_the_others_are_served(flip: int) -> None:
    """Fields without a checksum among them: a record that only lies is served as it is."""
    life, records = grown_life(is_closed=True)
    disk, record = life.disk, records[7]
    others = [one for one in records if one is not record]
    intact = disk.files()[path_of(record)]
    for at in range(record.size):
        life.disk = deepcopy(disk)
        byte = intact[record.commit_log_offset % SEGMENT_SIZE + at]
        damage(life.disk, record, at, bytes([byte ^ flip]))

        store = life.open()

        for one in others:
            queue = store.queue(one.topic, one.queue_id)
            assert queue is not None
            assert read_unit(store.log, queue.unit(one.queue_offset)) == one
        assert store.log.end == records[-1].commit_log_offset + records[-1].size


@pytest.mark.parametrize(
    ("lost", "is_closed"),
    [
        *(("consumequeue/", True), ("consumequeue/", False)),
        *(("checkpoint", True), ("checkpoint", False), (PROGRESS_PATH, True)),
    ],
)
def test_damage_is_gone_around_without_queues_note_or_checkpoint(
    lost: str, is_closed: bool
) -> None:
    """The queues get their numbers from the records behind the damage."""
    life, records = grown_life(is_closed=is_closed)
    for path in life.disk.paths():
        if path.startswith(lost):
            life.disk.remove(path)
    disk = life.disk
    for record in records[:-1]:
        life.disk = deepcopy(disk)
        damage(life.disk, record, 88, b"\xff\xff")
        go_on(life, check_around(life, records, [record]), records, [record])


@closed_and_killed
@pytest.mark.parametrize("seed", SEEDS)
def test_several_damaged_records_are_gone_around_whatever_else_is_lost(
    seed: int, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a row or apart; of each run the first is named, and how far it reaches."""
    random = Random(seed)
    life, records = grown_life(is_closed=is_closed, seed=seed)
    disk = life.disk
    for _ in range(20):
        life.disk = deepcopy(disk)
        caplog.clear()
        broken = [record for record in records[:-1] if random.random() < 0.3]
        for record in broken:
            damage(life.disk, record, 0, random.randbytes(91))
        for path in life.disk.paths():
            if path.startswith("consumequeue/") and random.random() < 0.2:
                life.disk.remove(path)

        store = check_around(life, records, broken)

        assert len(caplog.messages) == len(store.log.damage.stretches)
        total = sum(end - begin for begin, end in store.log.damage.stretches)
        assert total == sum(record.size for record in broken)
        go_on(life, store, records, broken)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_power_lost", [False, True], ids=["killed", "power lost"])
def test_a_start_over_damage_that_is_stopped_itself_is_done_again(
    seed: int, is_power_lost: bool
) -> None:
    random = Random(seed)
    life, records = grown_life(is_closed=True, seed=seed)
    broken = random.sample(records[:-1], 3)
    for record in broken:
        damage(life.disk, record, 0, b"\0" * 91)
    for path in life.disk.paths():
        if path.startswith("consumequeue/orders"):
            life.disk.remove(path)
    disk = life.disk
    for stop_after in range(0, 1000, STEP):
        life.disk = deepcopy(disk)
        life.disk.stop_before = len(disk.operations) + stop_after
        try:
            life.open()
        except MachineStopped:
            if is_power_lost:
                life.disk.lose_power(Random(stop_after))
            life.disk.stop_before = None
            go_on(life, check_around(life, records, broken), records, broken)
        else:
            return
    pytest.fail("the start came to no end")


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_and_a_power_loss_take_nothing_else_that_was_acknowledged(seed: int) -> None:
    """Given damage in what was known to be on the medium, and a torn tail far behind it."""
    turns = 9
    whole = Life(MemoryDisk(), seed)
    whole.run(turns)
    random = Random(seed)
    cases = 0
    for number in range(0, len(whole.disk.operations), STEP):
        life = Life(MemoryDisk(), seed)
        life.disk.stop_before = number
        with pytest.raises(MachineStopped):
            life.run(turns)
        life.disk.lose_power(Random(number))
        noted = load_progress(life.disk)
        healthy = deepcopy(life)
        records = log_records(healthy.check())
        known = [r for r in records if noted and r.commit_log_offset < noted.log_end]
        if len(known) < 2:
            continue
        broken = random.sample(known[:-1], min(2, len(known) - 1))
        for record in broken:
            damage(life.disk, record, 88, b"\xff\xff")

        go_on(life, check_around(life, records, broken), records, broken)
        cases += 1
    assert cases > 5


def test_a_zero_byte_in_a_property_is_no_damage_when_something_follows_after_a_kill() -> None:
    """Given a batch that was written, and not dispatched yet."""
    life, records = grown_life(is_closed=False)
    store = life.check()
    for tag in ("a\0b", "c"):
        store.append(message("orders", 0, b"body", tag=tag), life.now_ms)
    batch = store.take_batch()
    assert batch is not None
    store.log.write_batch(batch)

    store = life.open()

    assert store.log.end == batch.end
    assert store.log.damage.stretches == []
    assert [record.body for record in log_records(store)[len(records) :]] == [b"body", b"body"]


@closed_and_killed
def test_a_queue_offset_that_damage_cannot_explain_is_refused(is_closed: bool) -> None:
    """Given a record that was destroyed, and behind it one that claims a number far away."""
    life, records = grown_life(is_closed=is_closed)
    of_queue = [r for r in records if (r.topic, r.queue_id) == ("orders", 0)]
    damage(life.disk, of_queue[1], 88, b"\xff\xff")
    damage(life.disk, of_queue[2], 20, (1_001).to_bytes(8))
    for path in life.disk.paths():
        if path.startswith("consumequeue/orders/0"):
            life.disk.remove(path)

    with pytest.raises(StoreCorrupt, match="claims to be message 1001 of orders queue 0"):
        life.open()
