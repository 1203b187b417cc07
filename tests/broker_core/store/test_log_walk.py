"""Walking along a log: every record in its place, also behind damage, blanks and long records."""

from collections.abc import Iterable
from zlib import crc32

import pytest

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.log_walk import (
    LogWalk,
    blank_behind,
    damage_end,
    next_record,
    record_at,
    sound_records,
    store_time_ms,
)
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import BLANK_MAGIC, Record, encode_blank
from reliable_mq.wire.record_encode import encode_record

SEGMENT = 1024
MEBIBYTE = 1024 * 1024


def encoded(number: int, offset: int, body: bytes) -> bytes:
    """Encode a record, whose body may be longer than what this broker takes."""
    record = Record("t", b"", b"k\x01v\x02", queue_offset=number, store_time_ms=7 + number)
    record.commit_log_offset = offset
    stored = bytearray(encode_record(record))
    stored[84:88] = len(body).to_bytes(4) + body
    stored[8:12] = (crc32(body) & 0x7FFFFFFF).to_bytes(4)
    stored[0:4] = len(stored).to_bytes(4)
    return bytes(stored)


class Written:
    """A log with records, and where they are."""

    def __init__(self, bodies: Iterable[bytes], segment: int = SEGMENT, begin: int = 0) -> None:
        self.disk = MemoryDisk()
        if begin:
            self.disk.place_file(f"commitlog/{begin:020d}", bytes(segment))
        self.log = CommitLog(self.disk, segment)
        self.places: list[int] = []
        self.sizes: list[int] = []
        for number, body in enumerate(bodies):
            size = len(encoded(number, 0, body))
            place = self.log.room_for(size)
            self.log.add(encoded(number, place, body))
            self.places.append(place)
            self.sizes.append(size)
        batch = self.log.take_batch()
        assert batch is not None
        CommitLog.write_batch(batch)
        self.log.mark_durable(batch.end)

    def blank(self, first: int) -> int:
        """Return where the blank of a segment begins."""
        return max(
            place + size
            for place, size in zip(self.places, self.sizes, strict=True)
            if first <= place < first + SEGMENT
        )

    def overwrite(self, offset: int, data: bytes) -> None:
        first, segment = self.log.segment_at(offset)
        segment.write(offset - first, (data,))

    def destroy(self, number: int) -> None:
        """Change the body of a record, which its checksum shows."""
        self.overwrite(self.places[number] + 88, b"\xff\xff")

    def walked(self, start: int, begin: int) -> tuple[list[int], int, int]:
        """Return the places of the records of a walk, its end and its last record."""
        walk = LogWalk(self.log, start, begin)
        return [found.offset for found in walk], walk.end, walk.last


def some(begin: int = 0) -> Written:
    """Return a log of three segments."""
    return Written([b"b" * size for size in (100, 300, 200, 400, 50, 600)], begin=begin)


@pytest.mark.parametrize("begin", [0, 3 * SEGMENT])
def test_a_record_is_found_at_its_begin_and_nowhere_else(begin: int) -> None:
    written = some(begin)
    log = written.log
    for offset in range(begin - 2, log.capacity_end + 3):
        found = record_at(log, offset)
        if found is None:
            assert offset not in written.places
        else:
            at = written.places.index(offset)
            assert (found.offset, found.size, found.at) == (offset, written.sizes[at], 0)
            assert len(found.buffer) == found.size
            assert store_time_ms(found) == 7 + at


@pytest.mark.parametrize("begin", [0, 3 * SEGMENT])
def test_the_next_record_behind_any_place_is_found(begin: int) -> None:
    written = some(begin)
    for after in range(begin - 1 if begin else -1, written.log.capacity_end + 1):
        found = next_record(written.log, after)
        later = [place for place in written.places if place > after]
        assert (found.offset if found else None) == (later[0] if later else None)


def test_a_search_ends_with_the_segment_of_its_end() -> None:
    written = some()
    seconds = [place for place in written.places if place >= SEGMENT]
    assert next_record(written.log, SEGMENT - 50, SEGMENT) is None
    found = next_record(written.log, SEGMENT - 50, SEGMENT + 1)
    assert found is not None
    assert found.offset == seconds[0]


def test_what_looks_like_a_record_within_a_body_is_none() -> None:
    inner = encode_record(Record("t", b"inner", b""))  # its own place is 0
    written = Written([b"first", inner + inner[:40] + b"\xda\xa3\x20" * 3, b"last"])
    written.destroy(1)
    found = next_record(written.log, written.places[1])
    assert found is not None
    assert found.offset == written.places[2]


def test_damage_ends_at_the_next_record_of_the_segment_or_with_the_segment() -> None:
    written = some()
    for number, place in enumerate(written.places):
        written.destroy(number)
        later = [p for p in written.places[number + 1 :] if p // SEGMENT == place // SEGMENT]
        end = min((place // SEGMENT + 1) * SEGMENT, written.log.end)
        assert damage_end(written.log, place) == (later[0] if later else end)
        written.overwrite(place + 88, b"bb")


def test_damage_at_the_begin_of_a_segment_ends_in_it() -> None:
    written = some()
    written.overwrite(0, bytes(SEGMENT - 8))
    assert damage_end(written.log, 0) == SEGMENT
    assert damage_end(written.log, SEGMENT - 1) == SEGMENT


def test_the_blank_behind_a_place_is_found_by_its_size() -> None:
    written = some()
    blank = written.blank(0)
    assert blank_behind(written.log, 0) == blank
    assert blank_behind(written.log, blank - 1) == blank
    assert blank_behind(written.log, blank) == -1, "it must begin behind the place"
    assert blank_behind(written.log, SEGMENT) == written.blank(SEGMENT)
    assert blank_behind(written.log, written.places[5]) == -1, "the newest segment has none yet"


def test_a_blank_of_another_size_is_none() -> None:
    written = some()
    blank = written.blank(0)
    magic = BLANK_MAGIC.to_bytes(4)
    written.overwrite(200, magic * 9 + b"\0" + magic)
    written.overwrite(300, encode_blank(SEGMENT - 301))
    assert blank_behind(written.log, 0) == blank
    written.overwrite(blank, encode_blank(SEGMENT - blank - 1))
    assert blank_behind(written.log, 0) == -1


def test_a_blank_may_fill_a_whole_segment() -> None:
    written = some()
    written.overwrite(SEGMENT, encode_blank(SEGMENT))
    assert blank_behind(written.log, SEGMENT - 1) == -1, "it is in another segment"


@pytest.mark.parametrize("begin", [0, 2 * SEGMENT])
def test_a_walk_yields_the_records_from_its_begin_on_and_checks_those_before(begin: int) -> None:
    written = some(begin)
    end = written.places[-1] + written.sizes[-1]
    for start in written.places:
        for first in (start, start + 1, *(p for p in written.places if p > start), end):
            expected = [place for place in written.places if place >= max(start, first)]
            assert written.walked(start, first) == (expected, end, written.places[-1])


def test_a_walk_without_a_record_ends_where_it_starts() -> None:
    written = some()
    assert written.walked(1, 1) == ([], 1, -1)
    assert written.walked(written.log.end, 0) == ([], written.log.end, -1)
    assert written.walked(written.log.capacity_end, 0) == ([], written.log.capacity_end, -1)


def test_a_walk_ends_at_the_first_bad_record_and_goes_on_where_it_is_told() -> None:
    written = some()
    written.destroy(2)
    walk = LogWalk(written.log, 0, 0)
    assert [found.offset for found in walk] == written.places[:2]
    assert (walk.end, walk.last) == (written.places[2], written.places[1])
    walk.end = written.places[3]
    assert [found.offset for found in walk] == written.places[3:]
    assert walk.last == written.places[5]


def test_a_walk_that_is_left_ends_at_the_record_that_it_yielded_last() -> None:
    written = some()
    walk = LogWalk(written.log, 0, 0)
    for number, found in enumerate(walk):
        assert walk.end == found.offset
        assert walk.last == (written.places[number - 1] if number else -1)


def test_a_walk_does_not_go_over_a_segment_that_no_blank_closes() -> None:
    written = some()
    blank = written.blank(0)
    written.overwrite(blank, encode_blank(SEGMENT - blank - 1))
    assert written.walked(0, 0) == (written.places[:3], blank, written.places[2])


def test_a_blank_at_the_end_of_the_newest_segment_ends_the_log_before_it() -> None:
    written = Written([b"b" * 100])
    end = written.log.end
    written.overwrite(end, encode_blank(SEGMENT - end))
    assert written.walked(0, 0) == ([0], end, 0)


def test_records_longer_than_what_is_read_at_once_are_found() -> None:
    """A walk reads pieces of 4 MiB; a record of another configuration may have up to 16."""
    bodies = [b"s" * 100, b"l" * (5 * MEBIBYTE), b"s" * 100, b"l" * (4 * MEBIBYTE), b"s"]
    written = Written(bodies, segment=20 * MEBIBYTE)
    assert written.walked(0, 0)[0] == written.places
    written.overwrite(written.places[1] + 90, b"x")
    assert written.walked(0, 0)[:2] == ([0], written.places[1])


def test_a_record_as_long_as_a_frame_is_the_longest() -> None:
    size = FRAME_SIZE_MAX - len(encoded(0, 0, b""))
    for more, is_found in ((0, True), (1, False)):
        written = Written([b"f" * (size + more)], segment=20 * MEBIBYTE)
        assert (record_at(written.log, 0) is not None) is is_found
        assert written.walked(0, 0)[0] == ([0] if is_found else [])


def test_all_sound_records_are_found_and_damage_between_them_is_named() -> None:
    written = some()
    for number in (0, 2, 3):
        written.destroy(number)
    found = [each.offset for each in sound_records(written.log, 0)]
    assert found == [written.places[number] for number in (1, 4, 5)]
    named = [(stretch.begin, stretch.end) for stretch in written.log.damage.stretches]
    assert named == [(0, written.places[1]), (written.places[2], written.places[4])]


def test_damage_at_the_end_of_the_log_is_not_gone_around() -> None:
    written = some()
    written.destroy(5)
    assert [each.offset for each in sound_records(written.log, 0)] == written.places[:5]
    assert written.log.damage.stretches == []


def test_behind_the_end_of_a_whole_log_nothing_is_sought() -> None:
    written = some()
    written.disk.looks = []
    assert [each.offset for each in sound_records(written.log, 0)] == written.places
    assert not [look for look in written.disk.looks if look.verb == "find"]
