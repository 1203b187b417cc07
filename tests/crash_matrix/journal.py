"""What was tried so far, on disk: a run that was ended goes on where it was."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from tests.crash_matrix.modes import Mode, Role


class Death(msgspec.Struct, frozen=True):
    """What became of one death; `wrong` is empty when every promise was kept.

    `flaw`: what was planted, so that something has to be wrong; empty: nothing was.
    """

    role: Role
    mode: Mode
    point: str
    is_reached: bool
    wrong: tuple[str, ...]
    flaw: str = ""

    @property
    def what(self) -> tuple[Role, Mode, str, str]:
        """What was tried."""
        return self.role, self.mode, self.point, self.flaw


class _Points(msgspec.Struct, frozen=True):
    role: Role
    mode: Mode
    points: tuple[str, ...]


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    points: _Points | None = None
    death: Death | None = None
    seconds: float = 0.0


class Journal:
    """Points and deaths in a file, or in memory.

    Args:
        path: the file; None: nothing outlives this process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.points: dict[tuple[Role, Mode], Sequence[str]] = {}
        self.deaths: list[Death] = []
        self.seconds = 0.0
        """How long runs have taken altogether."""
        if path is not None and path.exists():
            for line in path.read_bytes().splitlines():
                self._take(msgspec.json.decode(line, type=_Line))

    def note_points(self, points: Mapping[tuple[Role, Mode], Sequence[str]]) -> None:
        """Note the points of some columns."""
        for (role, mode), these in sorted(points.items()):
            self._note(_Line(points=_Points(role, mode, tuple(these))))

    def note(self, death: Death) -> None:
        """Note what became of a death."""
        self._note(_Line(death=death))

    def note_seconds(self, seconds: float) -> None:
        """Note that a run has taken so long until now."""
        self._note(_Line(seconds=seconds))

    def _note(self, line: _Line) -> None:
        self._take(line)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

    def _take(self, line: _Line) -> None:
        self.seconds += line.seconds
        if line.points is not None:
            self.points[line.points.role, line.points.mode] = line.points.points
        if line.death is not None:
            self.deaths.append(line.death)
