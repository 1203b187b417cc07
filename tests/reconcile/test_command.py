"""`reliable-mq reconcile` as a process: bad input, output, and no Java on the machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reconcile.cases import Cases
from tests.reconcile.ledgers import StoreWriter, TableWriter

from reliable_mq.reconcile.verdict import Verdict

COMMAND = (sys.executable, "-m", "reliable_mq.cli.main", "reconcile")


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def ledgers(tmp_path: Path) -> tuple[str, str]:
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    return url, StoreWriter(tmp_path / "store").write()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--db": ""}, "--db is missing"),
        ({"--store": ""}, "--store is missing"),
        ({"--store": "nowhere"}, "nowhere is no store directory: it does not exist"),
        ({"--store": "."}, "has no folder commitlog"),
        ({"--db": "shop.db"}, "not a database URL"),
        ({"--db": "oddsql://host/name"}, "not a database URL"),
        ({"--db": "postgresql+psycopg://nobody@127.0.0.1:1/x"}, "database:"),
        ({"--db": "sqlite:////nowhere/shop.db"}, "database:"),
        (
            {"--table-prefix": "other_"},
            "no table other_message_stub and no table other_consume_log",
        ),
        ({"--since": "yesterday"}, "--since takes a time like"),
        ({"--until": "-3x"}, "--until takes a duration like"),
        ({"--grace": "soon"}, "--grace takes a duration like"),
        ({"--since": "2026-11-20", "--until": "2026-11-19"}, "--since must be before --until"),
        ({"--repair": "all"}, "--repair takes plan or apply"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(
    ledgers: tuple[str, str], tmp_path: Path, change: dict[str, str], says: str
) -> None:
    """Given bad input, then exit code 1 and not 2, which means findings; nothing is written."""
    words = {"--db": ledgers[0], "--store": ledgers[1], "--out": str(tmp_path / "out"), **change}

    done = run(*(word for pair in words.items() for word in pair))

    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert not (tmp_path / "out").exists()


def path_without_java(folder: Path) -> str:
    """Make a PATH of every program there is, but no java."""
    folder.mkdir()
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    return str(folder)


@pytest.mark.spark
def test_it_runs_on_the_wheels_java_when_none_is_installed(tmp_path: Path) -> None:
    """Given no Java on the PATH and no JAVA_HOME, when the command runs, then it reconciles; with
    --json it prints the summary and nothing else, and exits 2 for the finding."""
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    lost, queue = cases.new(payments=Verdict.LOST)
    cases.stub(lost, "payments", broker_name="broker-a", queue_id=queue, offset=9, count=1)
    url, store = cases.write()
    environment = {"PATH": path_without_java(tmp_path / "bin"), "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}

    done = run(
        *("--db", url, "--store", store, "--out", str(tmp_path / "out"), "--json"),
        environment=environment,
    )

    assert done.returncode == 2, done.stderr
    summary = json.loads(done.stdout)
    assert [finding["message_id"] for finding in summary["findings"]] == [lost]
    assert summary["verdicts"] == {"lost by the broker": 1}
    assert "Exception" not in done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"report.html", "summary.json", "verdicts.parquet", "latest.json"}
