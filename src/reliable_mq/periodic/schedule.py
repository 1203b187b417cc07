"""The ticks of a schedule: cron expressions in a time zone. Pure.

Receives expressions and times. Returns ticks, as seconds since the epoch. `cronsim` reads the
expressions as Debian's cron does, also when clocks are set for summer. A fixed time of a day ("30 2
* * *") then has one tick on every day: a time that is left out comes when the gap ends, and of a
time that comes twice, the first one counts. Other expressions ("*/15 * * * *", "0 * * * *", and
those with seconds) follow the time that really passes.
"""

import heapq
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from reliable_mq.errors import UsageError
from reliable_mq.extras import extra_of

if TYPE_CHECKING:
    from cronsim import CronSim

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EXPRESSION_LENGTH_MAX = 200
_EXPRESSIONS_MAX = 20
_EXAMPLE = "write minute, hour, day of the month, month and day of the week, as in '0 3 * * *'"
_SOME_MOMENT = 1_700_000_000.0
_SPANS = (60.0, 3_600.0, 86_400.0, 32 * 86_400.0, 366 * 86_400.0)
"""How far back the newest tick is searched, in seconds, before the whole time is searched."""
COUNTED_MAX = 1_000
"""Ticks are counted up to this number."""


class Schedule:
    """The union of the ticks of some cron expressions.

    Invariant: ticks increase; none comes twice.

    Args:
        expressions: cron expressions of five fields; with six, the first has seconds. Or "@hourly",
            "@daily", "@weekly", "@monthly", "@yearly".
        time_zone: the name of the time zone of all expressions, as "Europe/Berlin".
        what: names the schedule in errors.

    Raises:
        UsageError: an expression cannot be read or has no tick. There is no such time zone.
    """

    def __init__(self, expressions: Sequence[str], time_zone: str = "UTC", *, what: str) -> None:
        if not 1 <= len(expressions) <= _EXPRESSIONS_MAX:
            raise UsageError(
                f"{what}: {len(expressions)} cron expressions are given; give 1..{_EXPRESSIONS_MAX}"
            )
        self.zone = zone_of(time_zone, what)
        self.text = f"{' | '.join(map(str, expressions))} ({time_zone})"
        self._expressions = tuple(self._checked(each, what) for each in expressions)

    def _checked(self, expression: str, what: str) -> str:
        said = f"{what}: {expression!r:.100} is no cron expression"
        if not isinstance(expression, str) or len(expression) > _EXPRESSION_LENGTH_MAX:
            raise UsageError(f"{said}; {_EXAMPLE}")
        fields = _ALIASES.get(expression.strip().lower(), expression)
        try:
            tick = next(self._of(fields, _SOME_MOMENT), None)
        except Exception as error:
            if isinstance(error, UsageError):  # the extra is not installed
                raise
            raise UsageError(f"{said}: {error}; {_EXAMPLE}") from error
        if tick is None:
            raise UsageError(f"{what}: {expression!r} names a time that never comes")
        return fields

    def _of(self, expression: str, after: float) -> Iterator[float]:
        """Return the ticks of one expression, in order; one may come twice."""
        for moment in _cronsim()(expression, datetime.fromtimestamp(after // 1, self.zone)):
            # A search that begins in an hour that comes twice also finds ticks of its first time.
            if (tick := moment.timestamp()) > after:
                yield tick

    def ticks(self, after: float) -> Iterator[float]:
        """Return the ticks after a time, in order."""
        last = after
        for tick in heapq.merge(*(self._of(each, after) for each in self._expressions)):
            if tick > last:
                last = tick
                yield tick

    def first(self, after: float) -> float | None:
        """Return the first tick after a time; None: there is none within fifty years."""
        return next(self.ticks(after), None)

    def newest(self, after: float, until: float) -> float | None:
        """Return the newest tick that is after `after` and not after `until`; None: none is."""
        for span in (*_SPANS, until - after):
            begin, found = max(after, until - span), None
            for tick in self.ticks(begin):
                if tick > until:
                    break
                found = tick
            if found is not None or begin == after:
                return found
        return None

    def count(self, after: float, before: float) -> int:
        """Return how many ticks lie between two times, at most `COUNTED_MAX`."""
        number = 0
        for tick in self.ticks(after):
            if tick >= before or number == COUNTED_MAX:
                break
            number += 1
        return number


def zone_of(name: str, what: str) -> tzinfo:
    """Return the time zone of this name.

    Raises:
        UsageError: there is none. The text says which name is meant.
    """
    if name == "UTC":
        return UTC
    if isinstance(name, str) and name:
        try:
            return ZoneInfo(name)
        except (LookupError, ValueError, OSError):  # an unknown name, a path, a folder
            pass
    known = available_timezones()
    close = get_close_matches(str(name), sorted(known), 1) if known else []
    if close:
        hint = f"did you mean {close[0]!r}?"
    elif known:
        hint = "write a name as 'Europe/Berlin'"
    else:
        hint = "this system has no time zones: pip install tzdata"
    raise UsageError(f"{what}: time_zone={name!r:.100}: there is no such time zone; {hint}")


@cache
def _cronsim() -> "type[CronSim]":
    with extra_of("a periodic message"):
        from cronsim import CronSim  # noqa: PLC0415 - an extra
    return CronSim
