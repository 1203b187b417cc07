"""Watched time: what becomes old by it, and by no clock alone, may be removed (P7). Pure.

A clock that is set forward makes everything old at once. So whoever removes by age looks at two
clocks: the one that dates rows and files (the *wall*), and one that nobody can set (*ticks*). What
the wall gains over the ticks is a jump. Time that a jump claims to have passed makes nothing older,
until as much time was watched as the thing is to be kept for.

The looks are kept on disk, so that a process that starts under a wrong clock finds out. While the
machine was off nobody watched: a short gap is believed, of a longer one only a part.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from reliable_mq.decodable import decodable

FORGIVEN_SECONDS = 5.0
"""A smaller difference is no jump: a measurement may be as wrong as that. The looks of a stretch
have their differences summed. So this much is forgiven once."""
FORGIVEN_PART = 0.001
"""This part of the time that passed is no jump either: two clocks do not run equally fast."""
UNWATCHED_PART = 0.1
"""Of a gap in which nobody watched, at most this part of the shortest window is believed."""
UNWATCHED_SECONDS_MIN = 600.0
"""A gap as long as a restart of a machine takes is believed whatever the windows are."""
REMEMBERED_SECONDS = 366 * 86_400.0
"""A jump that is further back than this does not matter to any window."""
STRETCHES_MAX = 64
"""So many jumps are told apart; with more the oldest become one."""
LOOK_SECONDS = 60.0
"""How often a look is written down when there is no news."""


class ClockReading(msgspec.Struct, frozen=True):
    """One look at both clocks.

    Attributes:
        wall: seconds since the epoch, by the clock that dates what is removed.
        ticks: seconds of a clock that nobody sets and that goes on while the machine sleeps.
        run: names what the ticks count from, as the run of a machine; "": not known.
    """

    wall: float
    ticks: float = 0.0
    run: str = ""


class SteadyPeriod(msgspec.Struct, frozen=True, array_like=True):
    """A time without a jump: it begins when `watched` seconds were watched, the wall at `wall`."""

    watched: float
    wall: float


@decodable
class WatchedTime(msgspec.Struct, frozen=True):
    """What is known of the clocks. Values only: each look makes a new one.

    Invariant: the stretches are in the order of watched time, and there is at least one.

    Attributes:
        last: the last look.
        stretches: the last of them is the one that goes on.
        gained: seconds that the wall gained over the ticks since that one began, less what is
            forgiven for the time that passed. Below 0: the wall lost time.
    """

    last: ClockReading
    stretches: tuple[SteadyPeriod, ...]
    gained: float = 0.0

    @property
    def watched(self) -> float:
        """The seconds that were watched, counted from some moment."""
        now = self.stretches[-1]
        return now.watched + self.last.wall - now.wall

    def looked(self, reading: ClockReading, *, unwatched_max: float) -> "WatchedTime":
        """Return what is known after another look.

        Args:
            reading: the look.
            unwatched_max: seconds of a gap that nobody watched which are believed.
        """
        by_wall = reading.wall - self.last.wall
        passed, slack = min(max(by_wall, 0.0), unwatched_max), 0.0
        if reading.run and reading.run == self.last.run and reading.ticks >= self.last.ticks:
            passed = reading.ticks - self.last.ticks
            slack = passed * FORGIVEN_PART
        gained = _nearer_to_zero(self.gained + by_wall - passed, slack)
        if abs(gained) <= FORGIVEN_SECONDS:
            return WatchedTime(reading, self.stretches, gained)
        # What was forgiven until now was the beginning of this jump.
        begun = SteadyPeriod(self.watched - self.gained + passed, reading.wall)
        return WatchedTime(reading, _remembered((*self.stretches, begun)))

    def before(self, window: float) -> float:
        """Return the date, by the wall, before which things are older than a window.

        Whatever was dated later was dated within the window, by the clock as it was then or by the
        clock as it is now.
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
        """Return for how many seconds longer than a window things are kept for want of proof."""
        held = self.last.wall - window - self.before(window)
        return held if held > FORGIVEN_SECONDS else 0.0

    def held_until(self, window: float) -> float:
        """Return when, by the wall, nothing is kept longer than a window any more; jumps aside."""
        return self.last.wall + max(0.0, self.stretches[-1].watched + window - self.watched)

    def slowest(self) -> float:
        """Return the time by the slowest clock of those that may have dated something."""
        walls = (each.wall + self.watched - each.watched for each in self.stretches)
        return min(self.last.wall, *walls)


def first_look(reading: ClockReading, newest: float | None, *, unwatched_max: float) -> WatchedTime:
    """Return what is known when nobody has looked before.

    Args:
        reading: the look.
        newest: the date of the newest row, file or record; None: there is none. Nobody watched
            since then.
        unwatched_max: as of `WatchedTime.looked`.
    """
    begun = reading.wall if newest is None else min(newest, reading.wall)
    known = WatchedTime(ClockReading(begun), (SteadyPeriod(begun, begun),))
    return known.looked(reading, unwatched_max=unwatched_max)


def unwatched_max(shortest_window: float) -> float:
    """Return how many seconds of a gap are believed that nobody watched."""
    return max(shortest_window * UNWATCHED_PART, UNWATCHED_SECONDS_MIN)


def is_worth_noting(known: WatchedTime, earlier: WatchedTime | None) -> bool:
    """Say whether a look is to be written down: there is news, or it is a while ago."""
    if earlier is None or known.stretches != earlier.stretches:
        return True
    return not 0 <= known.last.wall - earlier.last.wall < LOOK_SECONDS


def jump_text(
    known: WatchedTime, earlier: WatchedTime | None, window: float, *, clock: str, things: str
) -> str:
    """Return what a person is to be told of a jump that the last look found; "": of none.

    Args:
        known: what is known after the look.
        earlier: what was known before; None: nobody had looked.
        window: seconds for which things are kept.
        clock: how the text names the clock.
        things: how the text names what is removed by age.
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
    """Return a time in the largest unit of which there are two or more."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def text_of(known: WatchedTime) -> str:
    """Return what `read` reads."""
    return msgspec.json.encode(known).decode()


def read(text: str | None) -> WatchedTime | None:
    """Return what a text says; None: it says nothing that could be read."""
    try:
        known = msgspec.json.decode(text or "", type=WatchedTime)
    except msgspec.MsgspecError:
        return None
    return known if known.stretches else None


def _nearer_to_zero(seconds: float, slack: float) -> float:
    return max(seconds - slack, 0.0) if seconds > 0 else min(seconds + slack, 0.0)


def _remembered(stretches: Sequence[SteadyPeriod]) -> tuple[SteadyPeriod, ...]:
    """Leave out what is too old to matter, and make one of the oldest two when there are many."""
    newest = stretches[-1].watched
    first = 0
    while first + 1 < len(stretches) and stretches[first + 1].watched < newest - REMEMBERED_SECONDS:
        first += 1
    kept = list(stretches[first:])
    if len(kept) > STRETCHES_MAX:
        one, two, *rest = kept
        # The slower clock of the two: what it dates becomes old no earlier than it should.
        kept = [
            SteadyPeriod(one.watched, min(one.wall, two.wall - (two.watched - one.watched))),
            *rest,
        ]
    return tuple(kept)
