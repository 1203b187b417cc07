"""The end of a run, killed by SIGKILL at every step that it takes, in a process of its own."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, select
from tests.reconcile.ledgers import NOW
from tests.steps import last_steps

from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.reconcile.judgement.flow import Flow
from reliable_mq.reconcile.report.summary import summarize
from reliable_mq.reconcile.runs.file_run_folders import LocalRunFolder, LocalRunFolders
from reliable_mq.reconcile.runs.run_folder import SUMMARY
from reliable_mq.reconcile.runs.spark_run import finish, write_run
from reliable_mq.reconcile.runs.sql_outcome import recorded_runs, write_outcome
from reliable_mq.testing.crash_watch import watch

STEPS_MAX = 200
DATES = ("as_of", "finish_date")
REPAIRED = {"mode": "apply", "planned": 0, "changed": 0, "actions": []}
FINDING = {"message_id": "M1", "consumer_group": "payments", "topic": "orders", "verdict": "stuck"}
LEDGERS = {"stubs": 1, "consume_logs": 0, "first_deliveries": 0, "other_copies": 0}
DAMAGE = {"damaged_stretches": 0, "damaged_bytes": 0, "damaged_from": None}
MOMENT = {"as_of": NOW.isoformat(), "since": None, "until": None, "grace_seconds": 1, "store": "s"}


def summary_of(run_id: str) -> dict[str, Any]:
    counted = LEDGERS | DAMAGE
    summary = summarize(
        run_id=run_id,
        moment=MOMENT,
        ledgers=counted,
        groups=(),
        findings=(),
        flow=Flow(),
        whole={},
        read_topics=(),
    )
    return summary | {"repair": None, "seconds": {"session": 0, "all": 0}}


class Runs:
    """The ends of runs over one database and one output."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/shop.db"
        (folder / "shop.db").touch()
        self.out = folder / "out"
        self.folders = LocalRunFolders(self.out)

    def known(self, ids: Any) -> set[str]:
        return recorded_runs(self.url, "rmq_", list(ids))

    def record(self, summary: dict[str, Any]) -> None:
        run: dict[str, Any] = dict.fromkeys(("verdicts", "ledgers", "store"), "{}") | dict.fromkeys(
            DATES, NOW
        )
        run |= {"run_id": summary["run_id"], "report": summary["report"]}
        run |= {"grace_seconds": 1, "is_clean": False, "findings": 1}
        write_outcome(self.url, "rmq_", run, [(FINDING, {})], NOW)

    def end(self, run_id: str) -> None:
        """Do a run, but for its judgement."""
        self.folders.sweep(self.known)
        folder = self.folders.begin(run_id)
        (self.out / f"run-{run_id}" / "verdicts.parquet").mkdir()
        summary = summary_of(run_id)
        write_run(folder, summary, self.record)
        finish(folder, summary, lambda: REPAIRED)

    def rows(self) -> dict[str, int]:
        """Return how many findings each recorded run has in the table."""
        engine = create_engine(self.url)
        runs, findings = run_table(MetaData(), "rmq_"), finding_table(MetaData(), "rmq_")
        with engine.connect() as connection:
            found = list(connection.scalars(select(findings.c.run_id)))
            ids = list(connection.scalars(select(runs.c.run_id)))
        engine.dispose()
        return {run_id: found.count(run_id) for run_id in ids}

    def latest(self) -> str:
        told: str = json.loads((self.out / "latest.json").read_text())["run_id"]
        assert (self.out / "report.html").read_text()
        assert json.loads((self.out / "summary.json").read_text())["run_id"] == told
        return told


def dies_at(number: int, life: Callable[[], None]) -> bool:
    """Let a copy of this process live and be killed at a step; return whether it came so far."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    taken = iter(range(STEPS_MAX))

    def step(_name: str) -> None:
        if next(taken) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        watch(step, files=True)
        life()
        code = 0
    finally:
        os._exit(code)


def test_a_run_that_is_killed_at_any_step_of_its_end_leaves_nothing_that_looks_whole(
    tmp_path: Path,
) -> None:
    """Given a run that ended, when the next one is killed at any of its steps, then the newest
    report is one of the two and whole, the table holds the second run with all its findings or not
    at all, and behind a third run no folder is left of a run that is not in the table."""
    deaths, recorded = 0, 0
    for number in last_steps(STEPS_MAX, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs = Runs(folder)
        runs.end("1")

        if not dies_at(number, lambda runs=runs: runs.end("2")):  # type: ignore[misc]
            break

        deaths += 1
        rows = runs.rows()
        assert rows in ({"1": 1}, {"1": 1, "2": 1})
        recorded += "2" in rows
        assert runs.latest() in rows
        runs.end("3")
        assert runs.latest() == "3"
        left = {path.name for path in runs.out.glob("run-*")}
        assert left == {f"run-{run_id}" for run_id in runs.rows()}
        assert not list(runs.out.glob("run-*/owner"))
    assert deaths >= 10
    assert 0 < recorded < deaths


def test_a_folder_whose_owner_lives_is_left_alone(tmp_path: Path) -> None:
    folders = LocalRunFolders(tmp_path)
    alive = folders.begin("1")

    assert LocalRunFolders(tmp_path).sweep(lambda _: ()) == []

    alive.write(SUMMARY, "{}")
    alive.publish()
    assert LocalRunFolders(tmp_path).sweep(lambda _: ()) == []
    assert (tmp_path / "latest.json").read_text() == "{}"


def test_only_the_newest_runs_are_kept_and_those_that_are_needed(tmp_path: Path) -> None:
    folders = LocalRunFolders(tmp_path)
    for run_id in ("1", "4", "2", "3", "0"):
        folder = folders.begin(run_id)
        folder.write(SUMMARY, "{}")
        folder.publish()

    assert folders.remove_except_newest(3, ("0",)) == ["1"]
    left = ["run-0", "run-2", "run-3", "run-4"]
    assert sorted(path.name for path in tmp_path.glob("run-*")) == left


def test_what_an_older_release_wrote_at_these_places_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "verdicts.parquet").mkdir()
    (tmp_path / "verdicts.parquet" / "part-0").touch()
    (tmp_path / "report.html").write_text("old")
    folder = LocalRunFolders(tmp_path).begin("1")
    folder.write("report.html", "new")

    folder.publish()

    assert (tmp_path / "report.html").read_text() == "new"
    assert (tmp_path / "verdicts.parquet").is_symlink()


def test_a_full_disk_leaves_no_file_that_is_cut_short(tmp_path: Path) -> None:
    """Given a report that finds no room, then what stood at its place stands there still."""
    folder: LocalRunFolder = LocalRunFolders(tmp_path).begin("1")
    folder.write("report.html", "whole")
    (tmp_path / "run-1" / ".report.html").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left on device"):
        folder.write("report.html", "cut short")

    assert (tmp_path / "run-1" / "report.html").read_text() == "whole"
