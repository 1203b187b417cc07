"""Delays as the broker knows them: eighteen levels, no time in between."""

from datetime import timedelta

from reliable_mq.errors import UsageError
from reliable_mq.limits import DELAY_LEVELS_TEXT

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds_of_level(text: str) -> float:
    """Return the seconds of one delay level as Apache writes it: `10s`, `5m`, `2h`."""
    return float(int(text[:-1]) * _UNIT_SECONDS[text[-1]])


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


DELAY_LEVEL_SECONDS = tuple(seconds_of_level(text) for text in DELAY_LEVELS_TEXT.split())
"""Wait of delay level 1, 2, … 18."""


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
    for level, seconds in enumerate(DELAY_LEVEL_SECONDS, start=1):
        if seconds >= delay:
            return level
    raise UsageError(
        f"a delay of {timedelta(seconds=delay)} is longer than the broker's longest delay level, "
        f"{timedelta(seconds=DELAY_LEVEL_SECONDS[-1])}"
    )
