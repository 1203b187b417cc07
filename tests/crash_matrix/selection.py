"""Which deaths are tried: all of them, or so many that every named point is among them."""

from collections.abc import Mapping, Sequence

from tests.crash_matrix.modes import Mode, Role

Points = Mapping[tuple[Role, Mode], Sequence[str]]
Wanted = list[tuple[Role, Mode, str]]


def all_of(points: Points, times_max: int) -> Wanted:
    """Return every point in every mode; of one that comes very often, the first `times_max`."""
    return [
        (role, mode, point)
        for (role, mode), these in sorted(points.items())
        for point in dict.fromkeys(these)
        if int(point.rpartition("#")[2]) <= times_max
    ]


def each_once(points: Points) -> Wanted:
    """Return every named point once, the modes in turn.

    What is "before" a step is left out: to others it is the same as after the step before it.
    """
    where: dict[tuple[Role, str], list[Mode]] = {}
    for (role, mode), these in sorted(points.items()):
        for point in dict.fromkeys(these):
            if point.endswith("#1") and ": before " not in point:
                where.setdefault((role, point), []).append(mode)
    return [
        (role, modes[turn % len(modes)], point)
        for turn, ((role, point), modes) in enumerate(sorted(where.items()))
    ]
