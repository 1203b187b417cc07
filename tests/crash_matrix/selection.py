"""Which deaths are tried, and in which order."""

import random
from collections.abc import Mapping, Sequence

from tests.crash_matrix.modes import Mode, Role

Points = Mapping[tuple[Role, Mode], Sequence[str]]
Wanted = list[tuple[Role, Mode, str]]

ACTS = ("acknowledge", "hold back", "send")
"""What is not finished by whoever hears of it: dying before it is not dying after another step."""


def is_step(point: str) -> bool:
    """Say whether a point is one of its own to anybody else.

    What is "before" a statement, a command or a frame is left out: nothing has left the process,
    so to all others it is what is after the step before.
    """
    name = point.rpartition("#")[0]
    return ": before " not in name or name.endswith(ACTS)


def named(points: Points, times_max: int = 1, *, before: bool = False) -> Points:
    """Return the points that are to be tried: of one that comes often the first `times_max`.

    Args:
        points: what lives have passed, in their order.
        times_max: how many of one name.
        before: also what `is_step` leaves out.
    """
    return {
        column: [
            point
            for point in dict.fromkeys(these)
            if int(point.rpartition("#")[2]) <= times_max and (before or is_step(point))
        ]
        for column, these in points.items()
    }


def in_turns(points: Points) -> list[Wanted]:
    """Return every point in every mode, in turns: each turn has each point once.

    A point's modes follow one another from turn to turn, so that those who see only some of the
    turns have seen every point, in modes that differ.
    """
    where: dict[tuple[Role, str], list[Mode]] = {}
    for (role, mode), these in sorted(points.items()):
        for point in these:
            where.setdefault((role, point), []).append(mode)
    turns: list[Wanted] = [[] for _ in range(max(map(len, where.values()), default=0))]
    for number, ((role, point), modes) in enumerate(sorted(where.items())):
        for turn in range(len(modes)):
            turns[turn].append((role, modes[(number + turn) % len(modes)], point))
    for turn, deaths in enumerate(turns):
        random.Random(turn).shuffle(deaths)  # neighbours would wait for the same at the same time
    return turns
