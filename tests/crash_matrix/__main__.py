"""Kill a real process at every step it takes: `python -m tests.crash_matrix`.

Prints the matrix, and writes it to a page of the docs when told to. With `--point` one death is
tried, again and again if wanted, with everything that was wrong after it.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.crash_matrix.application import TABLES
from tests.crash_matrix.lives import Lives
from tests.crash_matrix.matrix import Death, Matrix
from tests.crash_matrix.modes import MODES, SOME, Mode, Role, modes_of
from tests.crash_matrix.selection import all_of, each_once
from tests.crash_matrix.table import put_into, summary
from tests.crash_matrix.tables import our_tables
from tests.crash_matrix.worlds import Servers

TELL_EVERY = 25  # deaths


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__)
    parser.add_argument("--hands", type=int, default=4, help="how many runs go on at once")
    parser.add_argument("--times", type=int, default=1, help="deaths at the first N of one name")
    parser.add_argument("--once", action="store_true", help="what the tests try, in few modes")
    parser.add_argument("--role", choices=[str(role) for role in Role], action="append")
    parser.add_argument("--mode", choices=[str(mode) for mode in MODES], action="append")
    parser.add_argument("--point", action="append", help="only these points, written NAME#1")
    parser.add_argument("--points", action="store_true", help="print the points and try none")
    parser.add_argument("--page", type=Path, help="write the matrix into this page")
    return parser.parse_args()


def _columns(given: argparse.Namespace) -> list[tuple[Role, Mode]]:
    return [
        (role, mode)
        for role in Role
        for mode in modes_of(role)
        if (not given.role or role in given.role) and (not given.mode or str(mode) in given.mode)
        if mode in SOME or not given.once
    ]


def _tell(death: Death) -> None:
    if death.wrong:
        print(f"\nVIOLATION {death.role}, {death.mode}, {death.point}", flush=True)
        print(*(f"    {line}" for line in death.wrong), sep="\n", flush=True)
    elif not death.is_reached:
        print(f"not reached: {death.role}, {death.mode}, {death.point}", flush=True)


def main() -> int:
    given = _arguments()
    began = time.monotonic()
    with Servers([TABLES, our_tables()]) as servers, Lives() as lives:
        matrix = Matrix(servers, lives, given.hands)
        points = matrix.points(_columns(given))
        if given.points:
            for (role, mode), these in sorted(points.items()):
                print(*(f"{role}, {mode}: {point}" for point in these), sep="\n")
            return 0
        wanted = each_once(points) if given.once else all_of(points, given.times)
        if given.point:
            wanted = [(*column, point) for column in points for point in given.point]
        print(f"{len(wanted)} deaths in {len(points)} modes of {len(Role)} processes", flush=True)
        deaths: list[Death] = []
        for death in matrix.deaths(wanted):
            deaths.append(death)
            _tell(death)
            if len(deaths) % TELL_EVERY == 0:
                print(f"{len(deaths)} in {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{summary(deaths)}\n\n{time.monotonic() - began:.0f} s")
    if given.page:
        scope = "Every named point once:" if given.once else "Every point in every mode:"
        given.page.write_text(put_into(given.page.read_text(), deaths, scope))
    return 1 if any(death.wrong for death in deaths) else 0


if __name__ == "__main__":
    sys.exit(main())
