"""`reliable-mq reconcile --follow` as a process."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select
from tests.reconcile.test_command import COMMAND
from tests.reconcile.test_spark_increment import FIRST_DAY, Days

from reliable_mq.reconcile.sql_tables import run_table


@pytest.mark.spark
@pytest.mark.processes
def test_the_ledgers_are_followed_until_somebody_says_stop(tmp_path: Path) -> None:
    """Given a process that follows, when messages come, then the next increment judges them; when
    the process is told to stop it ends, and leaves nothing half done."""
    days = Days(tmp_path)
    days.settled(FIRST_DAY, 3)
    words = ["--db", days.url, "--store", days.store, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [*COMMAND, *words, "--follow", "--every", "1s", "--keep-runs", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert (first["rows"], first["increment"]["changed_since"]) == (3, None)
    days.sent(FIRST_DAY)

    told = (json.loads(line) for line in process.stdout)
    found = next(summary for summary in told if summary["rows"])

    assert found["verdicts"] == {"waiting": 1}
    assert found["increment"]["carried"] == 1
    process.send_signal(signal.SIGTERM)
    _, wrong = process.communicate()
    assert process.returncode == 0, wrong
    engine = create_engine(days.url)
    with engine.connect() as connection:
        runs = connection.execute(select(run_table(MetaData(), "rmq_"))).mappings().all()
    engine.dispose()
    assert {run["kind"] for run in runs} == {"increment"}
    before = {run["previous_run_id"] for run in runs}
    assert before - {run["run_id"] for run in runs} == {"0" * 32}
    assert not list((tmp_path / "out").glob("run-*/owner"))
    assert len(list((tmp_path / "out").glob("run-*"))) == 2
