"""The output of runs: one folder for each run, and one file that names the newest run. Pure.

    out/run-<id>/owner              exists while the run is in progress
    out/run-<id>/verdicts.parquet
    out/run-<id>/findings.parquet   the findings again: files sorted by message
    out/run-<id>/carried.parquet    of an increment: events for the next increment
    out/run-<id>/report.html
    out/run-<id>/summary.json       written last: it marks the folder as complete
    out/latest.json                 the newest run's summary, replaced in one step

`file_run_folders` uses local files, and `spark_run_folders` Hadoop's file systems.
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
"""Most rows of findings that one process has in memory."""
RUNS_KEPT = 7

Known = Callable[[Collection[str]], Collection[str]]
"""Returns those of the run ids that are in the table of runs."""


class RunResult(Protocol):
    """The result of a run, read from its folder."""

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id and consumer group."""


class RunFolder(Protocol):
    """The folder of one run.

    Invariant: a file of `write` has either its new content completely, or is as it was before.
    """

    @property
    def uri(self) -> str:
        """The URI for Spark, with the scheme of the file system."""

    @property
    def place(self) -> str:
        """The path of the folder, for people."""

    def write(self, name: str, text: str) -> None:
        """Write a file. It replaces an existing one."""

    def publish(self) -> None:
        """Make this run the newest one, and remove its `owner` file."""

    def remove(self) -> None:
        """Remove the folder with all its files."""


class RunFolders(Protocol):
    """The folders of all runs of one output."""

    def begin(self, run_id: str) -> RunFolder:
        """Create the folder of a run that begins."""

    def sweep(self, known: Known) -> list[str]:
        """Remove the folders of killed runs; return the ids of these runs.

        If the run is in the table, its folder is complete: it stays, and only `owner` is removed.
        """

    def remove_except_newest(self, number: int, needed: Collection[str]) -> list[str]:
        """Remove folders of ended runs, except the newest `number` and the `needed` ones.

        Returns the ids of the removed runs.
        """


def folder_of(run_id: str) -> str:
    """Return the name of a run's folder."""
    return f"{FOLDER_PREFIX}{run_id}"


def run_in(folder: str) -> str | None:
    """Return the run id in the name of a folder. None: it is no folder of a run."""
    return folder.removeprefix(FOLDER_PREFIX) if folder.startswith(FOLDER_PREFIX) else None


def too_many(run_ids: Iterable[str], number: int, needed: Collection[str]) -> list[str]:
    """Return the runs that are not among the `number` newest or needed. Ids begin with a time."""
    ordered = sorted(set(run_ids))
    return [run_id for run_id in ordered[: max(len(ordered) - number, 0)] if run_id not in needed]
