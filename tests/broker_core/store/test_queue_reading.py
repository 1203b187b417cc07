"""Reading message n although its unit or its record is damaged: found, mended, named once."""

import pytest
from tests.broker_core.store.store_life import SEGMENT_SIZE, flush, message, new_store

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import RECORD_SIZE_MIN, TRANSACTION_PREPARED

COUNT = 80
SOUGHT = 64 * 1024 * 1024
NOWHERE = QueueUnit(1 << 40, 120, 0)


class Grown:
    """A store with two queues whose messages lie in turns in the log."""

    def __init__(self, count: int = COUNT) -> None:
        self.disk = MemoryDisk()
        self.store: MessageStore = new_store(self.disk)
        self.store.open()
        for number in range(count):
            for queue_id in (0, 1):
                self.store.append(message("orders", queue_id, b"%03d" % number), 1_000 + number)
        flush(self.store)
        self.store.upkeep.flush()
        queue = self.store.queue("orders", 0)
        assert queue is not None
        self.queue: ConsumeQueue = queue
        self.units = [queue.unit(number) for number in range(count)]

    def body(self, number: int) -> bytes | None:
        found = self.store.reader.message(self.queue, number)
        return found.body if found else None

    def destroy(self, number: int) -> None:
        """Change the body of the record of a message."""
        first, segment = self.store.log.segment_at(self.units[number].commit_log_offset)
        segment.write(self.units[number].commit_log_offset - first + 88, (b"\xff",))

    def looked(self) -> list[tuple[str, str, int]]:
        """Return what was read and sought since the last call."""
        looks, self.disk.looks = self.disk.looks or [], []
        return [(each.verb, each.path.partition("/")[0], each.at) for each in looks]


@pytest.fixture
def grown() -> Grown:
    return Grown()


def test_a_sound_unit_costs_one_read_of_the_queue_and_one_of_the_log(grown: Grown) -> None:
    grown.looked()
    assert grown.body(9) == b"009"
    assert [look[:2] for look in grown.looked()] == [
        *(("read", "consumequeue"), ("read", "commitlog")),
    ]
    data = grown.store.reader.record(grown.queue, 9)
    assert data is not None
    assert len(data) == grown.units[9].size


@pytest.mark.parametrize("number", [0, 1, 40, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("others", [0, 1, 3, 40, COUNT])
def test_a_message_is_found_however_many_units_beside_its_own_are_damaged(
    grown: Grown, number: int, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    for other in range(max(0, number - others), min(COUNT, number + others + 1)):
        grown.queue.replace_unit(other, NOWHERE)
    assert grown.body(number) == b"%03d" % number
    assert grown.queue.unit(number) == grown.units[number], "it is mended, with its tag"
    assert len(caplog.messages) == 1
    caplog.clear()
    assert grown.body(number) == b"%03d" % number
    assert caplog.messages == []


def test_a_search_reads_the_log_only_between_the_records_of_the_neighbours(grown: Grown) -> None:
    grown.queue.replace_unit(5, NOWHERE)
    before, after = grown.units[4], grown.units[6]
    grown.looked()
    assert grown.body(5) == b"005"
    reads = [at for verb, folder, at in grown.looked() if (verb, folder) == ("read", "commitlog")]
    assert reads == [
        before.commit_log_offset,
        after.commit_log_offset,
        before.commit_log_offset + before.size,
    ]


@pytest.mark.parametrize("wrong", [1, 2, 79])
def test_a_unit_that_leads_to_another_message_is_not_believed(grown: Grown, wrong: int) -> None:
    grown.queue.replace_unit(3, grown.units[wrong])
    assert grown.body(3) == b"003"
    other = grown.store.queue("orders", 1)
    assert other is not None
    grown.queue.replace_unit(3, other.unit(3))
    assert grown.body(3) == b"003", "and not the one with its number in another queue"


@pytest.mark.parametrize(
    ("begin", "size", "is_likely"),
    [
        (0, 0, True),
        (0, 1, False),  # reaches into the next one
        (0, -1, True),
        (-1, 0, False),  # begins in the one before
        (-1, 1, False),
        (1, -1, True),
    ],
)
def test_a_unit_is_likely_between_its_neighbours(begin: int, size: int, is_likely: bool) -> None:
    store = new_store(MemoryDisk())
    store.open()
    for _ in range(3):
        store.append(message("orders", 0, b"side by side"), 1)
    flush(store)
    queue = store.queue("orders", 0)
    assert queue is not None
    unit = queue.unit(1)
    changed = QueueUnit(unit.commit_log_offset + begin, unit.size + size, 0)
    assert store.reader.is_likely(queue, 1, changed) is is_likely


def test_a_unit_is_likely_only_within_the_log_and_with_a_possible_size(grown: Grown) -> None:
    reader, queue, end = grown.store.reader, grown.queue, grown.store.log.written
    last = COUNT - 1
    assert reader.is_likely(queue, 0, grown.units[0])
    assert not reader.is_likely(queue, 0, QueueUnit(-1, grown.units[0].size, 0))
    assert not reader.is_likely(queue, 0, QueueUnit(0, grown.units[1].commit_log_offset + 1, 0))
    assert reader.is_likely(queue, last, QueueUnit(end - 1, RECORD_SIZE_MIN, 0))
    assert not reader.is_likely(queue, last, QueueUnit(end, RECORD_SIZE_MIN, 0))
    assert not reader.is_likely(queue, last, QueueUnit(end - 1, RECORD_SIZE_MIN - 1, 0))


def test_a_message_that_expired_is_missing_without_a_search_and_without_a_word(
    grown: Grown, caplog: pytest.LogCaptureFixture
) -> None:
    grown.store.expire(1)
    start = grown.store.log.start
    assert start == SEGMENT_SIZE
    grown.looked()
    for number, unit in enumerate(grown.units):
        expected = b"%03d" % number if unit.commit_log_offset >= start else None
        assert grown.body(number) == expected
    assert not [look for look in grown.looked() if look[0] == "find"]
    assert caplog.messages == []


def test_a_destroyed_record_is_named_once_and_not_sought_again(
    grown: Grown, caplog: pytest.LogCaptureFixture
) -> None:
    grown.destroy(7)
    assert grown.body(7) is None
    (told,) = caplog.messages
    assert f"(log offset {grown.units[7].commit_log_offset})" in told
    grown.looked()
    for _ in range(2):
        assert grown.body(7) is None
    assert not [look for look in grown.looked() if look[0] == "find"]
    assert caplog.messages == [told]
    assert grown.body(8) == b"008"


def test_a_damaged_unit_of_a_destroyed_record_is_named_once_and_not_sought_again(
    grown: Grown, caplog: pytest.LogCaptureFixture
) -> None:
    grown.destroy(7)
    grown.queue.replace_unit(7, NOWHERE)
    assert grown.body(7) is None
    (told,) = caplog.messages
    assert told.startswith(f"{grown.queue.path_of(7)}: the unit of message 7 is damaged")
    grown.looked()
    assert grown.body(7) is None
    assert not [look for look in grown.looked() if look[:2] == ("read", "commitlog")]
    assert caplog.messages == [told]


def test_a_destroyed_neighbour_does_not_end_a_search(grown: Grown) -> None:
    for number in (4, 6):
        grown.destroy(number)
    grown.queue.replace_unit(5, NOWHERE)
    assert grown.body(5) == b"005"


def test_damage_within_the_place_of_a_search_is_gone_around(grown: Grown) -> None:
    """Given that the record before it, of another queue, is destroyed, too."""
    other = grown.store.queue("orders", 1)
    assert other is not None
    first, segment = grown.store.log.segment_at(other.unit(4).commit_log_offset)
    segment.write(other.unit(4).commit_log_offset - first + 88, (b"\xff",))
    grown.queue.replace_unit(5, NOWHERE)
    assert grown.body(5) == b"005"


def test_a_half_message_with_the_number_of_a_message_is_not_that_message() -> None:
    """A half message has the number 0 of its queue, but no unit."""
    store = new_store(MemoryDisk())
    store.open()
    half = message("orders", 0, b"half")
    half.sys_flag = TRANSACTION_PREPARED
    store.append(half, 1)
    store.append(message("orders", 0, b"message"), 1)
    flush(store)
    store.upkeep.flush()
    queue = store.queue("orders", 0)
    assert queue is not None
    queue.replace_unit(0, NOWHERE)
    found = store.reader.message(queue, 0)
    assert found is not None
    assert found.body == b"message"


def test_a_queue_that_was_trimmed_is_mended_at_its_first_message(grown: Grown) -> None:
    grown.store.expire(1)
    for file, path in grown.store.upkeep.trim_some(grown.store.log.start, 9):
        file.close()
        grown.disk.remove(path)
    first = grown.queue.first
    assert first > 5
    grown.queue.replace_unit(first, NOWHERE)
    assert grown.body(first) == b"%03d" % first
    assert grown.queue.unit(first) == grown.units[first]
    assert grown.store.reader.is_likely(grown.queue, first, grown.units[first])


@pytest.mark.parametrize(("beyond", "is_found"), [(-1, True), (0, False)])
def test_a_record_is_sought_up_to_so_many_bytes_behind_the_neighbour(
    beyond: int, is_found: bool
) -> None:
    """64 MiB: a reader must not be held up by the search for one message."""
    disk = MemoryDisk()
    store = new_store(disk, segment_size=SOUGHT + 4096)
    store.open()
    for number in range(2):
        store.append(message("orders", 0, b"%d" % number), 1)
    flush(store)
    store.upkeep.flush()
    queue = store.queue("orders", 0)
    assert queue is not None
    first, second = queue.unit(0), queue.unit(1)
    _, segment = store.log.segment_at(0)
    record = bytearray(segment.read(second.commit_log_offset, second.size))
    segment.clear(second.commit_log_offset)
    place = first.size + SOUGHT + beyond
    record[28:36] = place.to_bytes(8)  # its own place
    segment.write(place, (bytes(record),))
    store.log.reset_end(place + second.size)
    queue.replace_unit(1, NOWHERE)
    found = store.reader.message(queue, 1)
    assert (found.body if found else None) == (b"1" if is_found else None)
