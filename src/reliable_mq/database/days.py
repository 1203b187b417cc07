"""Days of messages: which partitions must exist, and which may be dropped as a whole. Pure.

A message id begins with the time of its message, so a range of ids is a range of time. A table that
is partitioned by message id keeps its unique key on the id. An id that the application chose may
belong to any day or to none; ids of no day lie in the default partition.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

DAY_SECONDS = 86_400
DAYS_AHEAD = 3
"""The partition of a day is made this number of days before."""
DAYS_SPARED = 2.0
"""Days after the due day of a partition. If it could not be dropped by then, its rows are removed
one by one. The obstacle is an unsettled stub."""


class Day(msgspec.Struct, frozen=True, order=True):
    """One day in UTC, counted from the epoch."""

    number: int

    @property
    def ends(self) -> float:
        """The end of the day, in seconds since the epoch."""
        return float((self.number + 1) * DAY_SECONDS)

    @property
    def bounds(self) -> tuple[str, str]:
        """The first message id of the day, and the first of the next day."""
        return _first_id(self.number), _first_id(self.number + 1)

    def table(self, parent: str) -> str:
        """Return the name of the day's partition of a table."""
        day = datetime.fromtimestamp(self.number * DAY_SECONDS, UTC)
        return f"{parent}_d{day:%Y%m%d}"


def day_of(now: float) -> Day:
    """Return the day of a time."""
    return Day(int(now // DAY_SECONDS))


def day_in(name: str, parent: str) -> Day | None:
    """Return the day whose partition has this name; None: it is not the partition of a day."""
    digits = name.removeprefix(f"{parent}_d")
    if digits == name or len(digits) != len("20261121") or not digits.isdigit():
        return None
    try:
        day = datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return day_of(day.timestamp())


def wanted_days(now: float) -> list[Day]:
    """Return the days that must have a partition now: today and the next days."""
    today = day_of(now).number
    return [Day(number) for number in range(today, today + DAYS_AHEAD + 1)]


def days_over(days: Iterable[Day], before: float) -> list[Day]:
    """Return the days that ended before a time, the oldest first."""
    return sorted(day for day in days if day.ends <= before)


def _first_id(number: int) -> str:
    return f"{number * DAY_SECONDS * 1000:012X}" + "0" * 20
