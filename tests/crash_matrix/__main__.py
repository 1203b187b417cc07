"""Kill a real process at every step it takes: `python -m tests.crash_matrix`.

Prints the matrix. With `--page` it also writes the matrix into a page of the docs. With `--point`
it tries one death and prints everything that was wrong after it. With `--journal` a run can be
ended at any moment and continued later.
"""

import argparse
import math
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.crash_matrix.application import TABLES
from tests.crash_matrix.flaws import FLAWS, deaths_of
from tests.crash_matrix.journal import Death, Journal
from tests.crash_matrix.lives import Lives
from tests.crash_matrix.matrix import LifeFailed, Matrix
from tests.crash_matrix.modes import MODES, USUAL, Kind, Mode, Role, is_some, modes_of
from tests.crash_matrix.selection import Points, Wanted, in_turns, named
from tests.crash_matrix.table import (
    POINTS,
    canaries,
    put_into,
    put_points_into,
    scope,
    summary,
)
from tests.crash_matrix.tables import our_tables
from tests.crash_matrix.worlds import Servers

TELL_EVERY = 25  # deaths


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__)
    parser.add_argument("--hands", type=int, default=6, help="how many runs at the same time")
    parser.add_argument(
        "--times", type=int, default=1, help="deaths at the first N steps of each name"
    )
    parser.add_argument("--before", action="store_true", help="also die before each step")
    parser.add_argument(
        "--some", action="store_true", help="only some modes: any two values of two columns meet"
    )
    parser.add_argument("--mysql", action="store_true", help="only the modes of MySQL")
    parser.add_argument("--once", action="store_true", help="each point in one mode only")
    parser.add_argument("--role", choices=[str(role) for role in Role], action="append")
    parser.add_argument(
        "--mode",
        choices=[str(mode) for mode in MODES],
        action="append",
        metavar="MODE",
        help='such as "SQLite, one database, outbox, Redis up"',
    )
    parser.add_argument(
        "--point", action="append", help="only this point, such as NAME#1; repeatable"
    )
    parser.add_argument("--points", action="store_true", help="only print the points")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no death after this time"
    )
    parser.add_argument("--journal", type=Path, help="file of results; a later run continues it")
    parser.add_argument("--page", type=Path, help="the page to write the matrix into")
    return parser.parse_args()


def _columns(given: argparse.Namespace) -> list[tuple[Role, Mode]]:
    kinds: Collection[Kind] = USUAL
    if given.mysql:
        kinds = (Kind.MYSQL,)
    elif given.mode:
        kinds = tuple(Kind)
    return [
        (role, mode)
        for role in Role
        for mode in modes_of(role, kinds)
        if (not given.role or role in given.role) and (not given.mode or str(mode) in given.mode)
        if not given.some or is_some(mode)
    ]


def _tell(death: Death) -> None:
    if death.wrong and not death.flaw:
        print(f"\nVIOLATION {death.role}, {death.mode}, {death.point}", flush=True)
        print(*(f"    {line}" for line in death.wrong), sep="\n", flush=True)
    elif not death.is_reached:
        print(f"not reached: {death.role}, {death.mode}, {death.point}", flush=True)


class _Run:
    """One run: what is found goes into the journal as soon as it is known."""

    def __init__(self, matrix: Matrix, journal: Journal, minutes: float) -> None:
        self._matrix = matrix
        self._journal = journal
        self._began = self._noted = time.monotonic()
        self._until = self._began + minutes * 60

    def derive(self, columns: Sequence[tuple[Role, Mode]]) -> None:
        """Find the points of those columns that the journal does not know."""
        unknown = [column for column in columns if column not in self._journal.points]
        for column, points in self._matrix.points(unknown):
            if isinstance(points, LifeFailed):
                print(f"no points, {points}", flush=True)
            else:
                self._journal.note_points({column: points})
        self._note_time()

    def kill(self, wanted: Wanted, flaw: str = "") -> None:
        """Try what was not tried yet."""
        tried = {death.what for death in self._journal.deaths}
        left = [each for each in wanted if (*each, flaw) not in tried]
        for death in self._matrix.deaths(left, flaw, until=self._until):
            self._journal.note(death)
            _tell(death)
            if len(self._journal.deaths) % TELL_EVERY == 0:
                self._note_time()
        self._note_time()

    def _note_time(self) -> None:
        now = time.monotonic()
        self._journal.note_seconds(now - self._noted)
        self._noted = now
        print(f"{len(self._journal.deaths)} in {self._journal.seconds:.0f} s", flush=True)


def main() -> int:
    given = _arguments()
    journal, columns = Journal(given.journal), _columns(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are stopped on the way out
    with (
        Servers([TABLES, our_tables()]) as servers,
        Lives() as lives,
        Matrix(servers, lives, given.hands) as matrix,
    ):
        run = _Run(matrix, journal, given.minutes)
        run.derive(columns)
        passed = {each: journal.points[each] for each in columns if each in journal.points}
        points = named(passed, given.times, before=given.before)
        if given.points:
            for (role, mode), these in sorted(points.items()):
                print(*(f"{role}, {mode}: {point}" for point in these), sep="\n")
            return 0
        if given.point:
            run.kill([(*column, point) for column in points for point in given.point])
            return 1 if any(death.wrong for death in journal.deaths) else 0
        turns = in_turns(points)[: 1 if given.once else None]
        print(f"{sum(map(len, turns))} deaths in {len(points)} modes of {len(Role)} processes")
        for flaw in FLAWS:
            run.kill(deaths_of(flaw, passed), flaw)
        for turn in turns:
            run.kill(turn)
    return _told(given, points, journal)


def _told(given: argparse.Namespace, points: Points, journal: Journal) -> int:
    deaths = journal.deaths
    print(f"\n{scope(points, deaths, journal.seconds)}\n\n{summary(points, deaths)}")
    print(f"\n{canaries(deaths)}")
    if given.page:
        page = given.page.read_text()
        given.page.write_text(put_into(page, points, deaths, journal.seconds))
        single = given.page.with_name(POINTS)
        single.write_text(put_points_into(single.read_text(), points, deaths))
    # What was planted has to be found, and nothing else.
    return 1 if any(bool(death.wrong) != bool(death.flaw) for death in deaths) else 0


if __name__ == "__main__":
    sys.exit(main())
