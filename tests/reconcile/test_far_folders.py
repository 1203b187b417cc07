"""Folders of runs on a file system that is not this machine's: what is swept, what stays."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.reconcile.cases import every_case
from tests.reconcile.ledgers import GRACE, NOW
from tests.reconcile.webhdfs import webhdfs

from reliable_mq.reconcile.runs.run_folder import REPORT, SUMMARY
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.reconcile.runs.spark_run_folders import STALE_SECONDS, HadoopRunFolders

pytestmark = pytest.mark.spark


@pytest.fixture
def far(tmp_path: Path) -> Iterator[str]:
    """Give the URI of a far file system, whose files lie in `tmp_path / "far"`."""
    (tmp_path / "far").mkdir()
    with webhdfs(tmp_path / "far") as uri:
        yield uri


def nothing_for_a_day(folder: Path) -> None:
    then = time.time() - STALE_SECONDS - 60
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def test_what_a_killed_run_left_is_swept_when_nothing_was_written_for_a_day(
    spark: SparkSession, tmp_path: Path, far: str
) -> None:
    """Given folders of runs that were killed, lately and long ago, and of one that has a row; then
    only what is old and has no row goes, and the one with a row has ended."""
    folders = HadoopRunFolders(spark, f"{far}/reports/daily/")
    out = tmp_path / "far" / "reports" / "daily"
    assert folders.sweep(lambda ids: ids) == []
    for run_id in ("old", "young", "recorded"):
        folders.begin(run_id).write(REPORT, f"of {run_id}")
    for run_id in ("old", "recorded"):
        nothing_for_a_day(out / f"run-{run_id}")
    (out / "of-others").mkdir()

    assert folders.sweep({"recorded"}.intersection) == ["old"]

    assert sorted(path.name for path in out.iterdir()) == [
        "of-others",
        "run-recorded",
        "run-young",
    ]
    assert [(out / name / "owner").exists() for name in ("run-recorded", "run-young")] == [
        False,
        True,
    ]
    assert (out / "run-young" / REPORT).read_text() == "of young"


def test_the_newest_runs_stay_and_are_named(spark: SparkSession, tmp_path: Path, far: str) -> None:
    folders = HadoopRunFolders(spark, f"{far}/reports")
    for run_id in ("1", "2", "3"):
        folder = folders.begin(run_id)
        folder.write(SUMMARY, f"first of {run_id}")
        folder.write(SUMMARY, f"of {run_id}")
        folder.publish()

    assert folders.remove_except_newest(1, {"1"}) == ["2"]

    out = tmp_path / "far" / "reports"
    assert sorted(path.name for path in out.iterdir()) == ["latest.json", "run-1", "run-3"]
    assert (out / "latest.json").read_text() == "of 3"
    assert [path.name for path in (out / "run-3").iterdir()] == [SUMMARY]


def test_a_run_puts_its_output_far_away(spark: SparkSession, tmp_path: Path, far: str) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    expected, store = every_case(url, tmp_path / "store")

    summary = reconcile(RunOptions(url, store, f"{far}/out", NOW, GRACE))

    out = tmp_path / "far" / "out"
    folder = out / f"run-{summary['run_id']}"
    assert json.loads((out / "latest.json").read_text())["rows"] == len(expected)
    assert summary["parquet"] == f"{far}/out/{folder.name}/verdicts.parquet"
    verdicts = f"{folder}/verdicts.parquet/*.parquet"
    found = duckdb.connect().execute(f"SELECT count(*) FROM '{verdicts}'").fetchall()
    assert found == [(len(expected),)]
