"""When a message arrives, and how a broker is asked for that time. Pure.

A caller gives a delay or an instant; a stub keeps the instant. Each send asks the broker for the
remaining time. A broker with timers keeps it to the millisecond. A broker without timers (4.x, or
switched off) knows eighteen levels: the message comes after the next longer level, never early.
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
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

AHEAD_SECONDS_MAX = 3.2e9
"""A hundred years. A later time is a mistake, or not a legal date in some database."""
LEVEL_SECONDS_MAX = DELAY_LEVEL_SECONDS[-1]
_ASK_SECONDS_MIN = 0.5
"""Shortest wait before a broker is asked again that refused a message as too far ahead."""

SendMany = Callable[[Sequence[Message]], list[SendResult | Exception]]


def deliver_time_of(
    delay: timedelta | None, deliver_at: datetime | None, now: float
) -> float | None:
    """Return when a message arrives, in seconds since the epoch; None: at once.

    Args:
        delay: this much later than `now`.
        deliver_at: an instant with a time zone. An instant in the past means at once.
        now: the current time.

    Raises:
        UsageError: both are given, one has a wrong type, the instant has no time zone, or the
            time is more than a hundred years ahead.
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
    """Check the caller's delay or instant.

    Raises:
        UsageError: see `deliver_time_of`.
    """
    if delay is not None and deliver_at is not None:
        raise UsageError("give delay or deliver_at, not both")
    if delay is not None and not isinstance(delay, timedelta):
        seconds = delay if isinstance(delay, int | float) else "…"
        raise UsageError(f"delay={delay!r}: a timedelta is needed: timedelta(seconds={seconds})")
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise UsageError(f"deliver_at={deliver_at!r}: a datetime is needed")
    if deliver_at is not None and deliver_at.utcoffset() is None:
        raise UsageError(
            f"deliver_at={deliver_at} has no time zone: give one, as in datetime(…, tzinfo=UTC)"
        )


def _timestamp(deliver_at: datetime | None) -> float:
    if deliver_at is None:
        raise InvariantBroken("a message has a delay or an instant")
    return deliver_at.timestamp()


def rest_of(deliver_time: float | None, now: float) -> timedelta | None:
    """Return the remaining time until a message arrives; None: nothing remains, send at once."""
    if deliver_time is None or deliver_time <= now:
        return None
    return timedelta(seconds=deliver_time - now)


def delay_level_of(delay: float) -> int:
    """Return the lowest delay level that waits at least `delay` seconds; 0 for no delay.

    Raises:
        UsageError: the delay is longer than the longest level (two hours).
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
    """The delay of a message that went to a broker without timers, in seconds, and the reason."""

    seconds: float
    why: str


def timed_by_delay(message: Message, now: float) -> Message:
    """Return a message with a delay instead of its instant, if it has one."""
    if message.deliver_at is None:
        return message
    rest = rest_of(message.deliver_at.timestamp(), now) or timedelta()
    return msgspec.structs.replace(message, deliver_at=None, delay=rest)


def by_level(message: Message, error: object) -> Message | None:
    """Return the message with a delay level instead of its delay, for a broker without timers.

    None: the broker did not say that it has no timers, or the delay is longer than all levels.
    """
    rest = message.delay
    if rest is None or not is_without_timers(error) or rest.total_seconds() > LEVEL_SECONDS_MAX:
        return None
    _warn_once(str(error))
    level = delay_level_of(rest.total_seconds())
    return msgspec.structs.replace(message, delay=None, delay_level=level)


@lru_cache(maxsize=256)  # each broker once
def _warn_once(error: str) -> None:
    application_events.DELAYS_ROUNDED.log(log, error=error)


def send_timed(
    send_many: SendMany, messages: Sequence[Message]
) -> tuple[list[SendResult | Exception], dict[int, Levelled]]:
    """Send messages. Those that a broker has no timer for are sent once more, by delay level.

    Returns the results as `send_many` does, and the `Levelled` of each message that went by delay
    level, by index. An error of the second call is the result of only the messages of that call:
    what the first call stored stays sent. An error of the first call is raised.
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
    except Exception as error:  # noqa: BLE001 - whatever the error is, these sends failed
        second = [error for _ in by_levels]
    for place, result in zip(again, second, strict=False):
        seconds = DELAY_LEVEL_SECONDS[again[place].delay_level - 1]
        why = f"its delay was rounded up to a delay level of {seconds:g} s: {results[place]}"
        went[place] = Levelled(seconds, why)
        results[place] = result
    return results, went


def asked_again_at(error: object, deliver_time: float | None, now: float) -> float | None:
    """Return when to ask a broker again about a message that is too far ahead for it.

    None: the send failed for another reason. A broker with timers does not say how far ahead it
    accepts messages (its remark is for people). So each wait is half of the remaining time.
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
