"""The findings of a check. Values only."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    #: not wrong by itself, but a person should look at it
    WARNING = "warning"
    #: a guarantee is broken, or will be broken by the next crash
    ERROR = "error"
    #: the check was not possible; the text has the reason
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """One finding of one check. `remedy` says what to do.

    `database`: the name of the database if the application has several, else empty.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""
    database: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings. A skipped check counts as OK."""
    levels = {finding.level for finding in findings}
    return next((each for each in (Level.ERROR, Level.WARNING) if each in levels), Level.OK)


class CheckFindings:
    """Collects the findings of one check."""

    def __init__(self, check: str) -> None:
        self._check = check
        self.findings: list[Finding] = []

    def ok(self, text: str) -> None:
        """Add a finding of level OK. Use it if the check has no other finding."""
        self.findings.append(Finding(self._check, Level.OK, text))

    def warn(self, text: str, remedy: str) -> None:
        """Add a warning: a person should look at it."""
        self.findings.append(Finding(self._check, Level.WARNING, text, remedy))

    def error(self, text: str, remedy: str) -> None:
        """Add an error: it breaks a guarantee."""
        self.findings.append(Finding(self._check, Level.ERROR, text, remedy))

    def skip(self, text: str) -> None:
        """Add the reason why the check was not possible."""
        self.findings.append(Finding(self._check, Level.SKIPPED, text))
