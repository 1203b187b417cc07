"""Where a run puts its result: one folder for each run, and a place that names the newest. Pure.

    out/run-<id>/owner              while the run is under way
    out/run-<id>/verdicts.parquet
    out/run-<id>/findings.parquet   once more, by themselves: files sorted by message
    out/run-<id>/carried.parquet    of an increment: what the next one needs
    out/run-<id>/report.html
    out/run-<id>/summary.json       last: a folder that has it is whole
    out/latest.json                 the newest run's summary, replaced in one step

`file_run_folders` does it with files of this machine, `spark_run_folders` by Hadoop's file systems.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

FOLDER_PREFIX = "run-"
OWNER, SUMMARY, REPORT, VERDICTS = "owner", "summary.json", "report.html", "verdicts.parquet"
LATEST = "latest.json"
CARRIED = "carried.parquet"
FINDINGS = "findings.parquet"
FINDINGS_ORDER = ("message_id", "consumer_group")
FINDINGS_AT_ONCE = 50_000
"""So many rows of findings one process has in memory."""
RUNS_KEPT = 7

Known = Callable[[Collection[str]], Collection[str]]
"""Says which of these runs are in the table of runs."""


class RunResult(Protocol):
    """What a run found, as it lies in its folder; every reader of it begins here."""

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id and consumer group."""


class RunFolder(Protocol):
    """The folder of one run.

    Invariant: a file that `write` wrote is there whole or, as before, not at all.
    """

    @property
    def uri(self) -> str:
        """Where Spark writes to, with the scheme of its file system."""

    @property
    def place(self) -> str:
        """The folder as a person would write it."""

    def write(self, name: str, text: str) -> None:
        """Write a file, in the place of one that is there."""

    def publish(self) -> None:
        """Make this run the newest one; its folder has no owner any more."""

    def remove(self) -> None:
        """Remove the folder and all that is in it."""


class RunFolders(Protocol):
    """The folders of all runs of one output."""

    def begin(self, run_id: str) -> RunFolder:
        """Make the folder of a run that is under way."""

    def sweep(self, known: Known) -> list[str]:
        """Remove what runs left that were killed; return the ids of these runs.

        A folder whose run is in the table is whole: it stays, and only loses its owner.
        """

    def keep(self, number: int, needed: Collection[str]) -> list[str]:
        """Remove folders of ended runs but the newest ones and what is needed; return which."""


def folder_of(run_id: str) -> str:
    """Return the name of a run's folder."""
    return f"{FOLDER_PREFIX}{run_id}"


def run_in(folder: str) -> str | None:
    """Return the id of the run whose folder has this name, None: it is no run's."""
    return folder.removeprefix(FOLDER_PREFIX) if folder.startswith(FOLDER_PREFIX) else None


def too_many(run_ids: Iterable[str], number: int, needed: Collection[str]) -> list[str]:
    """Return the ended runs that are not among the `number` newest; an id begins with its time."""
    ordered = sorted(set(run_ids))
    return [run_id for run_id in ordered[: max(len(ordered) - number, 0)] if run_id not in needed]
