"""Delays as the broker knows them: eighteen levels, no time in between."""

from bisect import bisect_left
from datetime import timedelta

from reliable_mq.errors import UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS


def seconds_of(delay: timedelta | None) -> float:
    """Return a delay in seconds, 0 for none.

    Raises:
        UsageError: when it is a number, which does not say of what.
    """
    if delay is None:
        return 0.0
    if not isinstance(delay, timedelta):
        raise UsageError(f"delay={delay!r}: a timedelta is needed, timedelta(seconds=…)")
    return delay.total_seconds()


def delay_level_within(delay: float) -> int:
    """Return the delay level for what is left of a delay that was accepted when it was written.

    More than the longest level can be left only where two clocks disagree; it gets that level.
    """
    return delay_level_of(min(delay, DELAY_LEVEL_SECONDS[-1]))


def delay_level_of(delay: float) -> int:
    """Return the lowest delay level that waits at least `delay` seconds; 0 for no delay.

    Raises:
        UsageError: when the delay is longer than the broker's longest level, two hours.
    """
    if delay <= 0:
        return 0
    if delay > DELAY_LEVEL_SECONDS[-1]:
        raise UsageError(
            f"a delay of {delay:g} s is longer than the broker's longest delay "
            f"level, {timedelta(seconds=DELAY_LEVEL_SECONDS[-1])}"
        )
    return bisect_left(DELAY_LEVEL_SECONDS, delay) + 1
