"""What a check found. Values only."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    #: not wrong by itself, but somebody should look
    WARNING = "warning"
    #: a promise is broken, or will be when something dies
    ERROR = "error"
    #: could not be looked at; the text says why
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """One finding of one check; `remedy` says what to do.

    `database`: its name where the application has several, else empty.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""
    database: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among findings; what was skipped is no fault."""
    levels = {finding.level for finding in findings}
    return next((each for each in (Level.ERROR, Level.WARNING) if each in levels), Level.OK)


class CheckFindings:
    """Collects the findings of one check."""

    def __init__(self, check: str) -> None:
        self._check = check
        self.findings: list[Finding] = []

    def ok(self, text: str) -> None:
        """Say what is well; of use when nothing else is told."""
        self.findings.append(Finding(self._check, Level.OK, text))

    def warn(self, text: str, remedy: str) -> None:
        """Say what somebody should look at."""
        self.findings.append(Finding(self._check, Level.WARNING, text, remedy))

    def error(self, text: str, remedy: str) -> None:
        """Say what breaks a promise."""
        self.findings.append(Finding(self._check, Level.ERROR, text, remedy))

    def skip(self, text: str) -> None:
        """Say why nothing was looked at."""
        self.findings.append(Finding(self._check, Level.SKIPPED, text))
