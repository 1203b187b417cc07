"""When a message is to arrive, and how a broker is asked for it. Pure.

A caller says it by a delay or an instant; a stub keeps the instant. Each send asks for what is left
of it. A broker with timers takes that to the millisecond. One without (4.x, or its timers are off)
knows eighteen levels: there the message comes at the end of the next longer one, never early.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.message import Message, SendResult
from reliable_mq.refusals import is_too_far, is_without_timers

log = logging.getLogger(__name__)

AHEAD_SECONDS_MAX = 3.2e9
"""A hundred years: what is further is a mistake, or no date in some database."""
LEVEL_SECONDS_MAX = DELAY_LEVEL_SECONDS[-1]
_ASK_SECONDS_MIN = 0.5
"""Shortest wait until a broker is asked again that would not take a message so far ahead."""

SendMany = Callable[[Sequence[Message]], list[SendResult | Exception]]


def deliver_time_of(
    delay: timedelta | None, deliver_at: datetime | None, now: float
) -> float | None:
    """Return when a message is to arrive, seconds since the epoch; None: at once.

    Args:
        delay: so much later than `now`.
        deliver_at: an instant with a time zone. One that has passed means at once.
        now: the time.

    Raises:
        UsageError: when both are given, one is of another type, an instant has no time zone, or it
            is more than a hundred years ahead.
    """
    if delay is None and deliver_at is None:
        return None
    check_times(delay, deliver_at)
    rest = delay.total_seconds() if delay is not None else _timestamp(deliver_at) - now
    if rest > AHEAD_SECONDS_MAX:
        given = f"deliver_at={deliver_at}" if delay is None else f"delay={delay}"
        raise UsageError(f"{given}: more than a hundred years ahead")
    return now + rest if rest > 0 else None


def check_times(delay: timedelta | None, deliver_at: datetime | None) -> None:
    """Check how a caller says when a message is to arrive.

    Raises:
        UsageError: see `deliver_time_of`.
    """
    if delay is not None and deliver_at is not None:
        raise UsageError("give delay or deliver_at, not both")
    if delay is not None and not isinstance(delay, timedelta):
        raise UsageError(f"delay={delay!r}: a timedelta is needed, timedelta(seconds=…)")
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise UsageError(f"deliver_at={deliver_at!r}: a datetime is needed")
    if deliver_at is not None and deliver_at.utcoffset() is None:
        raise UsageError(
            f"deliver_at={deliver_at} has no time zone: give one, as datetime(…, tzinfo=UTC) does"
        )


def _timestamp(deliver_at: datetime | None) -> float:
    if deliver_at is None:
        raise InvariantBroken("a message has a delay or an instant")
    return deliver_at.timestamp()


def rest_of(deliver_time: float | None, now: float) -> timedelta | None:
    """Return what is left until a message is to arrive; None: nothing, it goes at once."""
    if deliver_time is None or deliver_time <= now:
        return None
    return timedelta(seconds=deliver_time - now)


def delay_level_of(delay: float) -> int:
    """Return the lowest delay level that waits at least `delay` seconds; 0 for no delay.

    Raises:
        UsageError: when the delay is longer than the longest level, two hours.
    """
    if delay <= 0:
        return 0
    if delay > LEVEL_SECONDS_MAX:
        raise UsageError(
            f"a delay of {delay:g} s is longer than the longest delay level, "
            f"{timedelta(seconds=LEVEL_SECONDS_MAX)}, and the broker has no timers"
        )
    return bisect_left(DELAY_LEVEL_SECONDS, delay) + 1


class Levelled(msgspec.Struct, frozen=True):
    """How a message went to a broker without timers: it comes `seconds` later, and why."""

    seconds: float
    why: str


def timed_by_delay(message: Message, now: float) -> Message:
    """Return a message with a delay instead of its instant, if it has one."""
    if message.deliver_at is None:
        return message
    rest = rest_of(message.deliver_at.timestamp(), now) or timedelta()
    return msgspec.structs.replace(message, deliver_at=None, delay=rest)


def by_level(message: Message, error: object) -> Message | None:
    """Return a message with a delay level for its delay, for a broker that has no timers.

    None: that is not what the broker said, or the delay is longer than the longest level.
    """
    rest = message.delay
    if rest is None or not is_without_timers(error) or rest.total_seconds() > LEVEL_SECONDS_MAX:
        return None
    _tell_once(str(error))
    level = delay_level_of(rest.total_seconds())
    return msgspec.structs.replace(message, delay=None, delay_level=level)


@lru_cache(maxsize=256)  # of each broker once
def _tell_once(error: str) -> None:
    log.warning("delays are rounded up to delay levels: %s", error)


def send_timed(
    send_many: SendMany, messages: Sequence[Message]
) -> tuple[list[SendResult | Exception], dict[int, Levelled]]:
    """Send messages; those that a broker has no timer for once more, by delay level.

    Returns the results as `send_many` does, and how those went that went by level, by their places.
    An exception of the second sending is the result of those only that it was to send; what the
    first one stored stays sent. One of the first sending is raised.
    """
    results = send_many(messages)
    again = {
        place: levelled
        for place, (message, result) in enumerate(zip(messages, results, strict=False))
        if message.delay is not None and (levelled := by_level(message, result)) is not None
    }
    if not again:
        return results, {}
    went: dict[int, Levelled] = {}
    by_levels = list(again.values())
    try:
        second = send_many(by_levels)
    except Exception as error:  # noqa: BLE001 - whatever it was, these sends did not succeed
        second = [error for _ in by_levels]
    for place, result in zip(again, second, strict=False):
        seconds = DELAY_LEVEL_SECONDS[again[place].delay_level - 1]
        why = f"its delay was rounded up to a delay level of {seconds:g} s: {results[place]}"
        went[place] = Levelled(seconds, why)
        results[place] = result
    return results, went


def asked_again_at(error: object, deliver_time: float | None, now: float) -> float | None:
    """Return when a broker may take a message that is too far ahead for it.

    None: that is not why it was not sent. A broker with timers does not say how far it looks (its
    remark is for people), so each time half of what is left is waited for.
    """
    if deliver_time is None or deliver_time <= now:
        return None
    if is_without_timers(error):
        until = deliver_time - LEVEL_SECONDS_MAX
    elif is_too_far(error):
        until = now + (deliver_time - now) / 2
    else:
        return None
    return max(until, now + _ASK_SECONDS_MIN)
