"""What the driver of mutants and the processes that try them tell each other, in files of JSON."""

import os
from pathlib import Path

import msgspec
from tests.house.mutations import Owner

_SECONDS_A_MUTANT = 8.0
"""Processor time of the tests that are asked about one mutant, the quickest first."""

_WAITING_SECONDS_MAX = 120.0
"""What a mutant may take by the clock, which only one reaches that waits for ever."""


class Seconds(msgspec.Struct, array_like=True):
    """What a test took when it was mapped."""

    cpu: float
    wall: float


class Map(msgspec.Struct):
    """Which test executes which line of which file, and which lines run at import."""

    tests: dict[str, Seconds] = {}
    lines: dict[str, dict[int, list[str]]] = {}
    at_import: dict[str, list[int]] = {}
    unfit: list[str] = []
    """Tests that fail without a mutant, mapped or forked."""

    def noticing(self, file: str, lines: tuple[int, int]) -> list[str]:
        """Return the tests that execute one of these lines, the quickest first."""
        executed = self.lines.get(file, {})
        names = {name for line in range(lines[0], lines[1] + 1) for name in executed.get(line, ())}
        return self.within_budget(names)

    def within_budget(self, names: set[str]) -> list[str]:
        """Leave out what is unfit, and the slowest, when all would take too long."""
        chosen: list[str] = []
        spent = 0.0
        for name in sorted(names - set(self.unfit), key=lambda name: (self.tests[name].cpu, name)):
            spent += self.tests[name].cpu
            if spent > _SECONDS_A_MUTANT and chosen:
                break
            chosen.append(name)
        return chosen

    def limits(self, names: list[str]) -> tuple[float, float]:
        """Return how many seconds of processor and of the clock these tests may take."""
        cpu = sum(self.tests[name].cpu for name in names)
        wall = sum(self.tests[name].wall for name in names)
        return 3 + 4 * cpu, min(30 + 10 * wall, _WAITING_SECONDS_MAX)


class Trial(msgspec.Struct):
    """A mutant to try: its file below the package, number, lines, and owner."""

    key: str
    file: str
    number: int
    lines: tuple[int, int]
    owner: Owner | None


class Job(msgspec.Struct):
    """What a session does, and where it writes the outcome of each trial."""

    do: str
    sources: list[str]
    map: str
    outcomes: str
    basetemp: str
    trials: list[Trial] = []


def the_job() -> Job:
    """Return the job of this process."""
    return msgspec.json.decode(Path(os.environ["MUTANTS_JOB"]).read_bytes(), type=Job)
