"""The matrix as a table of the docs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.crash_matrix.journal import Death
from tests.crash_matrix.modes import Mode, Role
from tests.crash_matrix.selection import Points

BEGIN, END = "<!-- matrix: written by `make crash` -->", "<!-- end of the matrix -->"
POINTS = "crash_matrix_points.md"
"""The page of single points, beside that of the matrix: it is as long as the rest."""


def scope(points: Points, deaths: Sequence[Death], seconds: float) -> str:
    """Return a sentence that says which part of the whole was tried."""
    whole = {(role, mode, point) for (role, mode), these in points.items() for point in these}
    tried = {(each.role, each.mode, each.point) for each in deaths if not each.flaw} & whole
    names = {(role, point) for role, _, point in whole}
    done = {(role, point) for role, _, point in tried}
    modes, minutes = f"{len(points)} modes of {len(Role)} processes", f"{seconds / 60:.0f} minutes"
    if tried == whole:
        return f"Every point in every mode: {len(whole):,} in {modes}, in {minutes}."
    return (
        f"{len(tried):,} of {len(whole):,} deaths were tried in {minutes}, at {len(done):,} of "
        f"{len(names):,} points, in {modes}. The table says in how many modes each point was tried."
    )


def summary(points: Points, deaths: Sequence[Death]) -> str:
    """Return deaths by role and mode, as Markdown."""
    lines = [
        "| process | mode | crash points | tried | died there | violations |",
        "|---|---|--:|--:|--:|--:|",
    ]
    by_mode: dict[tuple[Role, Mode], list[Death]] = defaultdict(list)
    for death in deaths:
        if not death.flaw:
            by_mode[death.role, death.mode].append(death)
    for (role, mode), these in sorted(points.items()):
        counts = _counts(by_mode[role, mode])
        lines.append(f"| {role} | {mode} | {len(these)} | {counts} |")
    whole = sum(map(len, points.values()))
    counts = _counts([death for death in deaths if not death.flaw], mark="**")
    return "\n".join([*lines, f"| **all** | | **{whole:,}** | {counts} |"])


def _counts(deaths: Sequence[Death], mark: str = "") -> str:
    died, bad = sum(each.is_reached for each in deaths), sum(bool(each.wrong) for each in deaths)
    return " | ".join(f"{mark}{each:,}{mark}" for each in (len(deaths), died, bad))


def by_point(points: Points, deaths: Iterable[Death]) -> str:
    """Return one row for each named point: in how many modes it is, and was tried."""
    lines = [
        "| process | crash point | in modes | tried in | died in | violations |",
        "|---|---|--:|--:|--:|--:|",
    ]
    places: dict[tuple[Role, str], set[Mode]] = defaultdict(set)
    for (role, mode), these in points.items():
        for point in these:
            places[role, _name(point)].add(mode)
    tried: dict[tuple[Role, str], list[Death]] = defaultdict(list)
    for death in deaths:
        if not death.flaw:
            tried[death.role, _name(death.point)].append(death)
    for (role, name), modes in sorted(places.items()):
        there = tried[role, name]
        in_, died = {each.mode for each in there}, {each.mode for each in there if each.is_reached}
        bad = sum(bool(each.wrong) for each in there)
        cells = (len(modes), len(in_), len(died), bad)
        lines.append(f"| {role} | `{name}` | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def canaries(deaths: Iterable[Death]) -> str:
    """Return one row for each planted flaw and mode: whether it was found, and by what."""
    lines = ["| planted flaw | mode | found | by |", "|---|---|---|---|"]
    rows = sorted((each.flaw, each.mode, each.wrong) for each in deaths if each.flaw)
    for flaw, mode, wrong in rows:
        by = next((line for line in wrong if line.startswith("effects of")), "")
        lines.append(f"| {flaw} | {mode} | {'yes' if by else '**no**'} | {by} |")
    return "\n".join(lines)


def _name(point: str) -> str:
    return point.rpartition("#")[0]


def put_into(page: str, points: Points, deaths: Sequence[Death], seconds: float) -> str:
    """Return the page with the matrix in its place, and a line that says what was tried.

    Raises:
        ValueError: when the page has no place for it.
    """
    parts = scope(points, deaths, seconds), summary(points, deaths), canaries(deaths)
    return _replaced(page, "\n\n".join(parts))


def put_points_into(page: str, points: Points, deaths: Sequence[Death]) -> str:
    """Return the page of single points with its table in its place. Raises: see `put_into`."""
    return _replaced(page, by_point(points, deaths))


def _replaced(page: str, content: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"
