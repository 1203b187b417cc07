"""Watched time: rows and files are removed by their age in watched time, not by a clock (P7). Pure.

A clock that is set forward makes everything old at once. So code that removes by age reads two
clocks. The *wall* dates rows and files; nobody can set the *ticks*. If the wall gains time over the
ticks, that is a jump. The time of a jump makes nothing older, until a whole retention window has
been watched after it.

The looks are kept on disk, so that a process that starts with a wrong clock detects it. Nobody
watched while the machine was off: a short gap is believed, and of a longer one only a part.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from reliable_mq.decodable import decodable

FORGIVEN_SECONDS = 5.0
"""A smaller difference is not a jump: it may be a measurement error. In a steady period, the
differences of all looks are summed, so this much is forgiven once."""
FORGIVEN_PART = 0.001
"""This part of the passed time is not a jump either: two clocks do not run equally fast."""
UNWATCHED_PART = 0.1
"""Of a gap without looks, at most this part of the shortest window is believed."""
UNWATCHED_SECONDS_MIN = 600.0
"""A gap that is as short as a restart of a machine is believed for all windows. Seconds."""
REMEMBERED_SECONDS = 366 * 86_400.0
"""A jump that is longer ago than this does not matter to any window."""
STRETCHES_MAX = 64
"""This many jumps are kept apart. If there are more, the oldest two become one."""
LOOK_SECONDS = 60.0
"""Seconds between looks that are written down without news."""


class ClockReading(msgspec.Struct, frozen=True):
    """One look at both clocks.

    Attributes:
        wall: seconds since the epoch, by the clock that dates rows and files.
        ticks: seconds of a clock that nobody sets and that runs while the machine sleeps.
        run: identifies the start of the ticks, such as a boot of the machine; "": not known.
    """

    wall: float
    ticks: float = 0.0
    run: str = ""


class SteadyPeriod(msgspec.Struct, frozen=True, array_like=True):
    """A time without a jump. It began after `watched` watched seconds, when the wall was `wall`."""

    watched: float
    wall: float


@decodable
class WatchedTime(msgspec.Struct, frozen=True):
    """What is known about the clocks. An immutable value: each look makes a new one.

    Invariant: the stretches are in the order of watched time, and there is at least one.

    Attributes:
        last: the last look.
        stretches: the steady periods; the last one still continues.
        gained: seconds that the wall has gained over the ticks since the last stretch began, minus
            the forgiven part of the passed time. Below 0: the wall has lost time.
    """

    last: ClockReading
    stretches: tuple[SteadyPeriod, ...]
    gained: float = 0.0

    @property
    def watched(self) -> float:
        """The watched seconds, counted from an arbitrary start."""
        now = self.stretches[-1]
        return now.watched + self.last.wall - now.wall

    def looked(self, reading: ClockReading, *, unwatched_max: float) -> "WatchedTime":
        """Return what is known after another look.

        Args:
            reading: the look.
            unwatched_max: the most seconds of a gap without looks that are believed.
        """
        by_wall = reading.wall - self.last.wall
        passed, slack = min(max(by_wall, 0.0), unwatched_max), 0.0
        if reading.run and reading.run == self.last.run and reading.ticks >= self.last.ticks:
            passed = reading.ticks - self.last.ticks
            slack = passed * FORGIVEN_PART
        gained = _reduced(self.gained + by_wall - passed, slack)
        if abs(gained) <= FORGIVEN_SECONDS:
            return WatchedTime(reading, self.stretches, gained)
        # The gain that was forgiven until now was the beginning of this jump.
        begun = SteadyPeriod(self.watched - self.gained + passed, reading.wall)
        return WatchedTime(reading, _remembered((*self.stretches, begun)))

    def before(self, window: float) -> float:
        """Return the date, by the wall, before which things are older than a window.

        Everything with a later date was dated within the window, by the clock of that time or by
        the clock of now.
        """
        since = self.watched - window
        dates = [self.last.wall - window]
        for number, stretch in enumerate(self.stretches):
            is_last = number + 1 == len(self.stretches)
            if not is_last and self.stretches[number + 1].watched <= since:
                continue
            is_first = number == 0
            begun = since if is_first else max(since, stretch.watched)
            dates.append(stretch.wall + begun - stretch.watched)
        return min(dates)

    def held(self, window: float) -> float:
        """Return how many seconds longer than a window things are kept, because age is unproven."""
        held = self.last.wall - window - self.before(window)
        return held if held > FORGIVEN_SECONDS else 0.0

    def held_until(self, window: float) -> float:
        """Return when, by the wall, things are kept no longer than a window, without new jumps."""
        return self.last.wall + max(0.0, self.stretches[-1].watched + window - self.watched)

    def slowest(self) -> float:
        """Return the time by the slowest clock that may have dated something."""
        walls = (each.wall + self.watched - each.watched for each in self.stretches)
        return min(self.last.wall, *walls)


def first_look(reading: ClockReading, newest: float | None, *, unwatched_max: float) -> WatchedTime:
    """Return what is known after the first look.

    Args:
        reading: the look.
        newest: the date of the newest row, file or record; None: there is none. There were no looks
            since then.
        unwatched_max: see `WatchedTime.looked`.
    """
    begun = reading.wall if newest is None else min(newest, reading.wall)
    known = WatchedTime(ClockReading(begun), (SteadyPeriod(begun, begun),))
    return known.looked(reading, unwatched_max=unwatched_max)


def unwatched_max(shortest_window: float) -> float:
    """Return how many seconds of a gap without looks are believed."""
    return max(shortest_window * UNWATCHED_PART, UNWATCHED_SECONDS_MIN)


def is_worth_noting(known: WatchedTime, earlier: WatchedTime | None) -> bool:
    """Return whether to write a look down: there is news, or the last one is a while ago."""
    if earlier is None or known.stretches != earlier.stretches:
        return True
    return not 0 <= known.last.wall - earlier.last.wall < LOOK_SECONDS


def jump_text(
    known: WatchedTime, earlier: WatchedTime | None, window: float, *, clock: str, things: str
) -> str:
    """Return the text for a person about a jump that the last look found; "": there was none.

    Args:
        known: what is known after the look.
        earlier: what was known before; None: there was no look.
        window: seconds that things are kept.
        clock: the name of the clock in the text.
        things: the name of the things that are removed by age, in the text.
    """
    newest = known.stretches[-1]
    if len(known.stretches) == 1 or (earlier is not None and newest == earlier.stretches[-1]):
        return ""
    before = known.stretches[-2]
    ahead = (newest.wall - before.wall) - (newest.watched - before.watched)
    if ahead < 0:
        said = f"{clock} was set back by {_span(-ahead)}"
    else:
        said = f"{clock} was {_span(ahead)} further than the time that passed"
    if not known.held(window):
        return f"{said}. Old {things} are kept as long as before."
    until = datetime.fromtimestamp(known.held_until(window), UTC)
    return (
        f"{said}; old {things} are kept until {until:%Y-%m-%d %H:%M} UTC. If the clock is wrong, "
        "set it. If the machine was off, there is nothing to do."
    )


def _span(seconds: float) -> str:
    """Return a time span in the largest unit in which it is at least two."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def text_of(known: WatchedTime) -> str:
    """Return the text that `read` reads."""
    return msgspec.json.encode(known).decode()


def read(text: str | None) -> WatchedTime | None:
    """Return what is known from a text; None: it cannot be read."""
    try:
        known = msgspec.json.decode(text or "", type=WatchedTime)
    except msgspec.MsgspecError:
        return None
    return known if known.stretches else None


def _reduced(seconds: float, slack: float) -> float:
    return max(seconds - slack, 0.0) if seconds > 0 else min(seconds + slack, 0.0)


def _remembered(stretches: Sequence[SteadyPeriod]) -> tuple[SteadyPeriod, ...]:
    """Remove stretches that are too old to matter, and merge the oldest two if there are many."""
    newest = stretches[-1].watched
    first = 0
    while first + 1 < len(stretches) and stretches[first + 1].watched < newest - REMEMBERED_SECONDS:
        first += 1
    kept = list(stretches[first:])
    if len(kept) > STRETCHES_MAX:
        one, two, *rest = kept
        # Keep the slower clock of the two: things that it dates do not become old too early.
        kept = [
            SteadyPeriod(one.watched, min(one.wall, two.wall - (two.watched - one.watched))),
            *rest,
        ]
    return tuple(kept)
