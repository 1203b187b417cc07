"""The matrix as a table of the docs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.crash_matrix.matrix import Death
from tests.crash_matrix.modes import Mode, Role

BEGIN, END = "<!-- matrix: written by `make crash` -->", "<!-- end of the matrix -->"


def summary(deaths: Sequence[Death]) -> str:
    """Return deaths by role and mode, as Markdown."""
    lines = ["| process | mode | crash points | died there | violations |", "|---|---|--:|--:|--:|"]
    by_mode: dict[tuple[Role, Mode], list[Death]] = defaultdict(list)
    for death in deaths:
        by_mode[death.role, death.mode].append(death)
    for (role, mode), these in sorted(by_mode.items()):
        died = sum(death.is_reached for death in these)
        bad = sum(bool(death.wrong) for death in these)
        lines.append(f"| {role} | {mode} | {len(these)} | {died} | {bad} |")
    died, bad = sum(death.is_reached for death in deaths), sum(bool(d.wrong) for d in deaths)
    lines.append(f"| **all** | | **{len(deaths)}** | **{died}** | **{bad}** |")
    return "\n".join(lines)


def by_point(deaths: Iterable[Death]) -> str:
    """Return one row for each named point: where, in how many modes, how many deaths there."""
    lines = ["| process | crash point | modes | deaths | violations |", "|---|---|--:|--:|--:|"]
    named: dict[tuple[Role, str], list[Death]] = defaultdict(list)
    for death in deaths:
        named[death.role, death.point.rpartition("#")[0]].append(death)
    for (role, name), these in sorted(named.items()):
        modes = len({death.mode for death in these if death.is_reached})
        died = sum(death.is_reached for death in these)
        bad = sum(bool(death.wrong) for death in these)
        lines.append(f"| {role} | `{name}` | {modes} | {died} | {bad} |")
    return "\n".join(lines)


def put_into(page: str, deaths: Sequence[Death], scope: str) -> str:
    """Return the page with the matrix in its place, and a line that says what was tried.

    Raises:
        ValueError: when the page has no place for it.
    """
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    tried = f"{scope}\n\n{summary(deaths)}\n\n{by_point(deaths)}"
    return f"{before}{BEGIN}\n{tried}\n{END}{after}"
