"""Delays and instants: when a message arrives, and by which of the broker's levels."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reliable_mq.errors import NoTimers, Refused, Unavailable, UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.message import Message
from reliable_mq.outbox.delay import (
    asked_again_at,
    by_level,
    delay_level_of,
    deliver_time_of,
    rest_of,
    timed_by_delay,
)

NOW = 1_000_000.0
CENTURY = timedelta(seconds=3.2e9)
NO_TIMERS = NoTimers("the broker at elder is older than 5.0 and has no timers")
TOO_FAR = Refused(13, "timer message illegal, the delay time should not be bigger than …")


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_message_without_a_time_arrives_at_once() -> None:
    assert deliver_time_of(None, None, NOW) is None
    assert deliver_time_of(timedelta(), None, NOW) is None
    assert deliver_time_of(timedelta(seconds=-1), None, NOW) is None
    assert deliver_time_of(None, instant(NOW), NOW) is None
    assert deliver_time_of(None, instant(NOW - 5), NOW) is None


def test_a_delay_counts_from_now_and_an_instant_is_itself() -> None:
    assert deliver_time_of(timedelta(milliseconds=500), None, NOW) == NOW + 0.5
    assert deliver_time_of(None, instant(NOW + 7), NOW) == NOW + 7


def test_what_is_more_than_a_hundred_years_ahead_is_refused() -> None:
    assert deliver_time_of(CENTURY, None, NOW) == NOW + 3.2e9
    with pytest.raises(UsageError, match=r"^delay=.* a hundred years ahead"):
        deliver_time_of(CENTURY + timedelta(seconds=1), None, NOW)
    with pytest.raises(UsageError, match=r"^deliver_at=.* a hundred years ahead"):
        deliver_time_of(None, instant(NOW) + CENTURY + timedelta(seconds=1), NOW)


@pytest.mark.parametrize(
    ("delay", "deliver_at", "reason"),
    [
        (timedelta(1), instant(NOW), "not both"),
        (5, None, "a timedelta is needed"),
        (None, 5.0, "a datetime is needed"),
        (None, datetime(2026, 11, 20), "has no time zone"),  # noqa: DTZ001 - that is the case
    ],
)
def test_a_time_that_is_none_is_refused(delay: Any, deliver_at: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        deliver_time_of(delay, deliver_at, NOW)


def test_the_rest_is_what_is_left() -> None:
    assert rest_of(None, NOW) is None
    assert rest_of(NOW, NOW) is None
    assert rest_of(NOW - 1, NOW) is None
    assert rest_of(NOW + 2.5, NOW) == timedelta(seconds=2.5)


def test_an_instant_becomes_a_delay() -> None:
    plain = Message("t", b"x")
    assert timed_by_delay(plain, NOW) is plain
    ahead = timed_by_delay(Message("t", b"x", deliver_at=instant(NOW + 9)), NOW)
    assert (ahead.delay, ahead.deliver_at) == (timedelta(seconds=9), None)
    passed = timed_by_delay(Message("t", b"x", deliver_at=instant(NOW - 9)), NOW)
    assert (passed.delay, passed.deliver_at) == (timedelta(), None)


def test_a_broker_without_timers_gets_a_level_that_waits_at_least_as_long() -> None:
    def levelled(seconds: float, error: object = NO_TIMERS) -> int | None:
        found = by_level(Message("t", b"x", delay=timedelta(seconds=seconds)), error)
        assert found is None or found.delay is None
        return None if found is None else found.delay_level

    assert (levelled(1), levelled(1.5), levelled(7200)) == (1, 2, 18)
    assert levelled(7201) is None
    assert levelled(1, TOO_FAR) is None
    assert by_level(Message("t", b"x"), NO_TIMERS) is None


@pytest.mark.parametrize(
    ("error", "ahead", "again"),
    [
        (NO_TIMERS, 10_000.0, 10_000.0 - 7200.0),
        (NO_TIMERS, 7_000.0, 0.5),
        (TOO_FAR, 10_000.0, 5_000.0),
        (TOO_FAR, 0.6, 0.5),
        (TOO_FAR, 0.0, None),
        (TOO_FAR, -1.0, None),
        (TOO_FAR, None, None),
        (Unavailable("nobody there"), 10_000.0, None),
        (Refused(13, "the message is too large"), 10_000.0, None),
        (Refused(1, "timer message illegal"), 10_000.0, None),
    ],
)
def test_a_broker_that_is_asked_too_early_is_asked_again_when_it_may_take_it(
    error: Exception, ahead: float | None, again: float | None
) -> None:
    deliver_time = None if ahead is None else NOW + ahead
    expected = None if again is None else NOW + again
    assert asked_again_at(error, deliver_time, NOW) == expected


@pytest.mark.parametrize("level", range(1, 19))
def test_the_time_of_a_level_is_that_level_and_a_little_more_is_the_next(level: int) -> None:
    seconds = DELAY_LEVEL_SECONDS[level - 1]

    assert delay_level_of(seconds) == level
    if level < 18:
        assert delay_level_of(seconds + 0.001) == level + 1


def test_no_delay_and_a_time_that_has_passed_are_level_zero() -> None:
    assert delay_level_of(0) == delay_level_of(-5) == 0


def test_a_delay_of_more_than_two_hours_is_refused() -> None:
    with pytest.raises(UsageError, match="of 7201 s is longer"):
        delay_level_of(7201)
