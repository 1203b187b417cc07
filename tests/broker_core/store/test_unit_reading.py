"""Reading a record at a named place: sound records only, damage named once, with its reach."""

import pytest
from tests.broker_core.store.test_log_walk import SEGMENT, Written, some

from reliable_mq.broker_core.store.consume_queue import QueueUnit
from reliable_mq.broker_core.store.unit_reading import read_listed, read_unit, sound_record
from reliable_mq.limits import FRAME_SIZE_MAX


def stretches(written: Written) -> list[tuple[int, int]]:
    return [(stretch.begin, stretch.end) for stretch in written.log.damage.stretches]


def test_a_sound_record_is_read_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    written = some()
    for number, (place, size) in enumerate(zip(written.places, written.sizes, strict=True)):
        data = sound_record(written.log, place, size)
        assert data is not None
        assert len(data) == size
        unit, listed = (
            read_unit(written.log, QueueUnit(place, size, 0)),
            read_listed(written.log, place),
        )
        assert unit is not None
        assert unit == listed
        assert unit.queue_offset == number
    assert (caplog.messages, stretches(written)) == ([], [])


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_damaged_record_is_named_once_up_to_the_next_one(
    is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    written = some()
    for number in (0, 3):
        written.destroy(number)
        for _ in range(2):
            unit = QueueUnit(written.places[number], written.sizes[number], 0)
            assert (
                read_listed(written.log, unit.commit_log_offset)
                if is_listed
                else read_unit(written.log, unit)
            ) is None
    ends = [written.places[1], written.places[4]]
    assert stretches(written) == [(0, ends[0]), (written.places[3], ends[1])]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("size", [-5, 0, 1, 90, FRAME_SIZE_MAX + 1])
def test_an_impossible_size_names_the_place(size: int) -> None:
    written = some()
    assert sound_record(written.log, 1, size) is None
    assert stretches(written) == [(1, written.places[1])]


def test_the_begin_of_the_log_may_be_damaged_and_what_expired_is_no_damage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = some()
    written.log.take_oldest(1)
    assert written.log.start == SEGMENT
    for offset in (0, SEGMENT - 1):
        assert sound_record(written.log, offset, 200) is None
        assert read_listed(written.log, offset) is None
    assert stretches(written) == []
    assert caplog.messages == []
    first = next(number for number, place in enumerate(written.places) if place == SEGMENT)
    written.destroy(first)
    assert sound_record(written.log, SEGMENT, written.sizes[first]) is None
    assert stretches(written) == [(SEGMENT, written.places[first + 1])]


@pytest.mark.parametrize(
    ("beyond", "size", "reach"), [(0, 200, 200), (0, 0, 1), (5, -7, 1), (5, 1, 1), (10**9, 2, 2)]
)
def test_a_unit_behind_the_end_of_the_log_is_named_once(
    beyond: int, size: int, reach: int, caplog: pytest.LogCaptureFixture
) -> None:
    written = some()
    offset = written.log.end + beyond
    for _ in range(2):
        assert sound_record(written.log, offset, size) is None
    (told,) = caplog.messages
    assert told.startswith(f"a consume queue names log offset {offset}, but the log ends at")
    assert stretches(written) == [(offset, offset + reach)]
    assert read_listed(written.log, offset) is None
    assert len(caplog.messages) == 1
