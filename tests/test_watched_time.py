"""What becomes old: by time that somebody watched, and by no clock alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.watched_time import (
    STRETCHES_MAX,
    ClockReading,
    WatchedTime,
    first_look,
    read,
    text_of,
)

DAY = 86_400.0
NOW = 20_000 * DAY
GAP = 3600.0
"""What is believed of a gap that nobody watched."""


class Watch:
    """Looks once a minute. `true` is the time that has really passed."""

    def __init__(self) -> None:
        self.true = 0.0
        self.ahead = 0.0
        self.run = "one"
        self.known = first_look(self.reading(), None, unwatched_max=GAP)

    def reading(self) -> ClockReading:
        return ClockReading(NOW + self.true + self.ahead, self.true, self.run)

    def look(self, passed: float = 60.0, *, jump: float = 0.0) -> WatchedTime:
        self.true += passed
        self.ahead += jump
        self.known = self.known.looked(self.reading(), unwatched_max=GAP)
        return self.known


def test_a_clock_that_goes_as_it_should_makes_things_old_as_it_says() -> None:
    watch = Watch()
    for _ in range(100):
        known = watch.look(3600.0)
        assert known.before(7 * DAY) == known.last.wall - 7 * DAY
        assert known.held(7 * DAY) == 0


def test_a_jump_ahead_makes_nothing_old_and_its_end_leaves_no_trace() -> None:
    watch = Watch()
    known = watch.look(jump=40 * DAY)
    assert known.before(7 * DAY) == NOW + 60 - 7 * DAY
    assert known.held(7 * DAY) == 40 * DAY
    assert watch.look(100.0).before(7 * DAY) == NOW + 160 - 7 * DAY

    known = watch.look(jump=-40 * DAY)
    assert known.before(7 * DAY) == known.last.wall - 7 * DAY
    assert known.held(7 * DAY) == 0


@pytest.mark.parametrize("step", [4.9, 0.5, -4.9])
def test_a_clock_that_goes_wrong_in_small_steps_is_forgiven_once(step: float) -> None:
    watch = Watch()
    days = 10
    for _ in range(days * 1440):
        watch.look(60.0, jump=step)
    assert abs(watch.known.watched - NOW - watch.true) < 5.0 + watch.true * 0.001
    assert len(watch.known.stretches) > 1
    # What was written four days ago is younger than five days, whatever the clock says.
    written = NOW + 6 * DAY + 6 * 1440 * step
    assert watch.known.before(5 * DAY) < written


def test_what_is_forgiven_is_not_saved_up_by_a_clock_that_was_right_for_a_year() -> None:
    watch = Watch()
    watch.look(365 * DAY)
    for _ in range(60):
        watch.look(60.0, jump=4.9)
    assert watch.known.watched - NOW - watch.true < 10.0


def test_two_clocks_that_do_not_run_equally_fast_are_no_jump() -> None:
    watch = Watch()
    for _ in range(100):
        watch.look(DAY, jump=DAY * 0.0009)
    assert len(watch.known.stretches) == 1


def test_a_clock_that_is_put_right_by_some_seconds_now_and_then_is_no_jump() -> None:
    watch = Watch()
    for _ in range(100):
        watch.look(3600.0, jump=4.0)  # 0.11 %
        watch.look(3600.0, jump=-4.0)
    assert len(watch.known.stretches) == 1


def test_a_clock_that_stays_ahead_is_believed_when_the_window_was_watched() -> None:
    watch = Watch()
    watch.look(jump=40 * DAY)
    until = watch.known.held_until(7 * DAY)
    known = watch.look(6.9 * DAY)
    assert known.held(7 * DAY) == 40 * DAY
    assert until == known.held_until(7 * DAY)
    known = watch.look(0.2 * DAY)
    assert known.held(7 * DAY) == 0
    assert known.before(7 * DAY) == known.last.wall - 7 * DAY
    assert known.held(30 * DAY) > 0


def test_a_clock_that_went_back_never_calls_old_what_is_young_by_it() -> None:
    watch = Watch()
    known = watch.look(jump=-40 * DAY)
    assert known.before(7 * DAY) == known.last.wall - 7 * DAY
    known = watch.look(3 * DAY)
    assert known.before(DAY) == known.last.wall - DAY


def test_a_start_in_the_same_run_of_the_machine_goes_on_watching() -> None:
    watch = Watch()
    watch.known = read(text_of(watch.known)) or watch.known
    known = watch.look(5 * DAY)  # nobody ran meanwhile, but the ticks went on
    assert known.held(7 * DAY) == 0
    assert watch.look(jump=DAY).held(7 * DAY) == DAY


def test_a_start_of_the_machine_under_a_wrong_clock_makes_nothing_old() -> None:
    watch = Watch()
    watch.run = "two"
    known = watch.look(120.0, jump=40 * DAY)
    assert known.held(7 * DAY) == 40 * DAY + 120 - GAP


def test_a_short_time_that_nobody_watched_is_believed() -> None:
    watch = Watch()
    watch.run = "two"
    assert watch.look(GAP).held(7 * DAY) == 0


def test_ticks_that_begin_anew_under_the_same_name_were_not_watched() -> None:
    watch = Watch()
    watch.look(1000.0)
    watch.true, watch.ahead = 0.0, 2 * DAY
    watch.known = watch.known.looked(watch.reading(), unwatched_max=GAP)
    assert watch.known.held(7 * DAY) == 2 * DAY - 1000.0 - GAP


def test_whoever_never_looked_believes_the_newest_row_more_than_the_clock() -> None:
    reading = ClockReading(NOW, 5.0, "one")
    assert first_look(reading, NOW - GAP, unwatched_max=GAP).held(7 * DAY) == 0
    held = first_look(reading, NOW - 40 * DAY, unwatched_max=GAP).held(7 * DAY)
    assert held == 40 * DAY - GAP
    assert first_look(reading, NOW + 40 * DAY, unwatched_max=GAP).before(DAY) == NOW - DAY


def test_a_machine_that_is_off_every_night_removes_though_later() -> None:
    watch = Watch()
    worst = 0.0
    for day in range(60):
        watch.look(8 * 3600.0)
        watch.run = f"day {day}"
        worst = max(worst, watch.look(16 * 3600.0).held(7 * DAY))
    assert 0 < worst < 20 * DAY


def test_what_nobody_can_read_says_nothing() -> None:
    for text in (None, "", "{", '{"last": {"wall": 1.0}, "stretches": []}', "[]"):
        assert read(text) is None


_looks = st.lists(
    st.tuples(st.floats(0, 3 * DAY), st.sampled_from([0.0, 0.0, DAY, -DAY, 40 * DAY, -40 * DAY])),
    max_size=2 * STRETCHES_MAX,
)


@given(_looks, st.floats(0, 40 * DAY))
def test_nothing_that_was_dated_within_a_window_is_ever_old(
    looks: list[tuple[float, float]], window: float
) -> None:
    watch = Watch()
    dated = [(watch.true, watch.reading().wall)]
    for passed, jump in looks:
        known = watch.look(passed, jump=jump)
        before = known.before(window)
        assert before <= known.last.wall - window + 1e-3
        for true, date in dated:
            # What is forgiven once, and the part of the time, is the only error.
            slack = 10.0 + watch.true * 0.001
            assert date + 1e-3 >= before or watch.true - true >= window - slack
        dated.append((watch.true, known.last.wall))
        assert len(known.stretches) <= STRETCHES_MAX
        assert known.slowest() <= known.before(window) + window + 1e-3
