"""Days of messages: which partitions there should be, and which may go as a whole. Pure.

A message id begins with the time of its message, so a range of ids is a range of time, and a table
that is partitioned by it keeps its unique key over the id. Ids that the application chose fall into
any day, or into none: those lie in the partition of everything else.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

DAY_SECONDS = 86_400
DAYS_AHEAD = 3
"""So many days have their partition before they begin."""
DAYS_SPARED = 2.0
"""Rows of a partition are removed one by one only when it could not go so many days after it was
first due: what stands in its way is a stub that is not settled."""


class Day(msgspec.Struct, frozen=True, order=True):
    """One day in UTC, counted from the epoch."""

    number: int

    @property
    def ends(self) -> float:
        """When it is over, seconds since the epoch."""
        return float((self.number + 1) * DAY_SECONDS)

    @property
    def bounds(self) -> tuple[str, str]:
        """The first message id of the day and that of the next one."""
        return _first_id(self.number), _first_id(self.number + 1)

    def table(self, parent: str) -> str:
        """Return the name of its partition of a table."""
        day = datetime.fromtimestamp(self.number * DAY_SECONDS, UTC)
        return f"{parent}_d{day:%Y%m%d}"


def day_of(now: float) -> Day:
    """Return the day of a moment."""
    return Day(int(now // DAY_SECONDS))


def day_in(name: str, parent: str) -> Day | None:
    """Return the day whose partition has this name, None: it is that of none."""
    digits = name.removeprefix(f"{parent}_d")
    if digits == name or len(digits) != len("20261121") or not digits.isdigit():
        return None
    try:
        day = datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return day_of(day.timestamp())


def wanted_days(now: float) -> list[Day]:
    """Return the days that should have a partition now: today and those to come."""
    today = day_of(now).number
    return [Day(number) for number in range(today, today + DAYS_AHEAD + 1)]


def days_over(days: Iterable[Day], before: float) -> list[Day]:
    """Return the days that were over before a time, the oldest first."""
    return sorted(day for day in days if day.ends <= before)


def _first_id(number: int) -> str:
    return f"{number * DAY_SECONDS * 1000:012X}" + "0" * 20
