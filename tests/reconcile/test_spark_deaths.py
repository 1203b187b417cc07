"""Processes of a reconciliation that are killed: the command, a worker in Python, an executor.

Each death comes while a worker reads the log: a hook in its Python stops it there, and says which
process it is.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from sqlalchemy import MetaData
from tests.reconcile.cases import every_case
from tests.reconcile.ledgers import GRACE
from tests.reconcile.local_spark import LocalSparkCluster, spark_environment, spark_program
from tests.reconcile.plain import PlainReconciliation
from tests.reconcile.test_spark_reconcile import options, rows_of
from tests.waiting import communicate, until

from reliable_mq.database.sql_run_tables import run_table
from reliable_mq.reconcile.runs.spark_run import reconcile

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
CLI = ROOT / "src" / "reliable_mq" / "cli" / "reconcile.py"
START_SECONDS_MAX = 300.0  # of Spark, on a machine that is busy
# The first worker that opens a segment of the log tells its process id, and waits until the gate is
# open; Spark's workers are forks of `pyspark.daemon`, in which this was imported.
HOOK = """
import os, sys, time
from pathlib import Path
gate = os.environ.get("TEST_GATE")
if gate and "pyspark.daemon" in sys.orig_argv:
    told, opened = Path(gate) / "reader", Path(gate) / "open"
    def hook(event, arguments):
        if event == "open" and "/commitlog/" in str(arguments[0]) and not opened.exists():
            try:
                handle = os.open(told, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return
            os.write(handle, str(os.getpid()).encode())
            os.close(handle)
            while not opened.exists():
                time.sleep(0.01)
    sys.addaudithook(hook)
"""


class Gate:
    """Stops a reader of the log until it is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "hook").mkdir(parents=True)
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        paths = (str(folder / "hook"), str(ROOT / "src"), str(ROOT))
        self.environment = {"TEST_GATE": str(folder), "PYTHONPATH": os.pathsep.join(paths)}

    def reader(self, run: subprocess.Popen[str]) -> int:
        """Wait for the worker of `run` that reads the log; return its process id.

        No reader comes any more when the run has ended: then the test fails at once.
        """
        told = self._folder / "reader"
        until(
            lambda: told.exists() and told.read_text() != "",
            seen=lambda: self._seen(run),
            seconds=START_SECONDS_MAX,
            possible=lambda: run.poll() is None,
        )
        return int(told.read_text())

    def _seen(self, run: subprocess.Popen[str]) -> str:
        """Return what a run without a reader has come to: its workers in Python, or its end."""
        if run.poll() is not None:
            return f"the run has ended: {end_of(run)}"
        os.killpg(run.pid, signal.SIGKILL)  # what it has printed can only be read to the end
        return f"the run went on without a reader, and was killed; it printed {end_of(run)}"

    def open(self) -> None:
        (self._folder / "open").touch()

    def close(self) -> None:
        """Stop the next reader again."""
        for name in ("open", "reader"):
            (self._folder / name).unlink(missing_ok=True)


class Ledgers:
    """One message for every way into a verdict, and what is to come out."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/shop.db"
        _, self.store = every_case(self.url, folder / "store")
        now = datetime.now(UTC)  # as the command judges
        self.expected = PlainReconciliation(self.url, self.store, now, GRACE).verdicts()
        self.out = folder / "out"

    def words(self, out: str = "") -> list[str]:
        grace = f"{GRACE.total_seconds()}s"
        where = ("--db", self.url, "--store", self.store, "--out", out or str(self.out))
        return [*where, "--grace", grace, "--json"]

    def runs(self) -> list[dict[str, object]]:
        return rows_of(self.url, run_table(MetaData(), "rmq_"))


@contextmanager
def begun(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a run; when the block ends, nothing of it runs any more, Spark neither."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


def end_of(run: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the end of a run; return what it printed, and its errors."""
    return communicate(run, timeout=START_SECONDS_MAX)


def local_command() -> list[str]:
    return [sys.executable, "-m", "reliable_mq.cli.main", "reconcile"]


@pytest.mark.usefixtures("spark")
def test_a_run_that_is_killed_in_the_middle_has_never_been(tmp_path: Path) -> None:
    """Given a run, when its process is killed while workers read, then nothing says that it was;
    the next run has the right result, and sweeps what the dead one left."""
    ledgers, gate = Ledgers(tmp_path), Gate(tmp_path / "gate")
    command = [*local_command(), *ledgers.words()]
    with begun(command, {**os.environ, **gate.environment}) as process:
        reader = gate.reader(process)
        process.kill()
        end_of(process)
        until(lambda: not Path(f"/proc/{reader}").exists())
    assert [path.name for path in ledgers.out.iterdir() if path.name[0] != "."] == [
        path.name for path in ledgers.out.glob("run-*")
    ]
    (dead,) = ledgers.out.glob("run-*")
    assert not (dead / "summary.json").exists()

    summary = reconcile(options(ledgers.url, ledgers.store, ledgers.out))

    assert summary["rows"] == len(ledgers.expected)
    assert not dead.exists()
    assert [run["run_id"] for run in ledgers.runs()] == [summary["run_id"]]


@pytest.mark.long
def test_a_run_that_is_told_to_stop_cleans_up_and_says_so_in_one_line(tmp_path: Path) -> None:
    """Given a run, when somebody presses Ctrl-C while workers read, then nothing is left of it, on
    the disk of its output and on Spark's own."""
    ledgers, gate, scratch = Ledgers(tmp_path), Gate(tmp_path / "gate"), tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, **gate.environment, "TMPDIR": str(scratch)}
    with begun([*local_command(), *ledgers.words()], environment) as process:
        gate.reader(process)
        process.send_signal(signal.SIGINT)
        told, wrong = end_of(process)

    assert (process.returncode, told) == (128 + signal.SIGINT, ""), wrong
    assert wrong == "error: stopped by SIGINT before the run had ended; run it again\n"
    assert not list(ledgers.out.glob("run-*"))
    assert not list(scratch.glob("reliable-mq-spark-*"))


@pytest.mark.long
def test_a_worker_of_spark_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """Given a run, when a worker in Python is killed, as a machine without memory does, then it is
    replaced, and nothing is counted twice."""
    ledgers, gate = Ledgers(tmp_path), Gate(tmp_path / "gate")
    command = [*local_command(), *ledgers.words()]
    with begun(command, {**os.environ, **gate.environment}) as process:
        os.kill(gate.reader(process), signal.SIGKILL)
        gate.open()
        told, wrong = end_of(process)

    assert process.returncode == 2, wrong
    whole = reconcile(options(ledgers.url, ledgers.store, tmp_path / "again"))
    assert json.loads(told)["ledgers"] == whole["ledgers"]
    assert json.loads(told)["rows"] == len(ledgers.expected)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LocalSparkCluster, Gate]]:
    """Give a master and two workers, whose first reader of a log waits at a gate."""
    folder = tmp_path_factory.mktemp("cluster")
    gate = Gate(folder / "gate")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gate.environment.items():
            patch.setenv(name, value)
        cluster = LocalSparkCluster(folder)
        cluster.start()
    yield cluster, gate
    cluster.stop()


def submit(cluster: LocalSparkCluster, *words: str) -> list[str]:
    """Return the command that gives a run to the cluster."""
    small = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.driver.extraJavaOptions": small,
        "spark.executor.extraJavaOptions": small,
        "spark.hadoop.fs.viewfs.mounttable.far.link./reports": f"file://{words[0]}",
    }
    pairs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [spark_program("spark-submit"), "--master", cluster.url, *pairs, str(CLI), *words[1:]]


@pytest.mark.long
def test_a_cluster_gives_the_same_result_when_an_executor_is_killed(
    tmp_path: Path, cluster: tuple[LocalSparkCluster, Gate]
) -> None:
    """Given a run on a master and two workers, with its output on a file system that is no disk of
    this machine's; when an executor is killed in the middle, then another one does its work, and
    every verdict is there once."""
    ledgers = Ledgers(tmp_path)
    far = tmp_path / "far"
    far.mkdir()
    out = "viewfs://far/reports/daily"
    spark, gate = cluster
    with begun(submit(spark, str(far), *ledgers.words(out)), spark_environment()) as process:
        os.kill(executor_of(gate.reader(process), spark), signal.SIGKILL)
        gate.open()
        answer, wrong = end_of(process)

    assert process.returncode == 2, wrong
    summary = json.loads(answer)
    assert summary["rows"] == len(ledgers.expected)
    assert summary["parquet"] == f"{out}/run-{summary['run_id']}/verdicts.parquet"
    newest = json.loads((far / "daily" / "latest.json").read_text())
    assert newest["run_id"] == summary["run_id"]
    (run,) = ledgers.runs()
    assert run["report"] == summary["report"]
    folder = far / "daily" / f"run-{summary['run_id']}"
    assert not (folder / "owner").exists()
    found = (
        duckdb.connect()
        .execute(
            "SELECT message_id, consumer_group, verdict"
            f" FROM '{folder}/verdicts.parquet/*.parquet' ORDER BY ALL"
        )
        .fetchall()
    )
    assert found == sorted((*key, str(verdict)) for key, verdict in ledgers.expected.items())


def executor_of(reader: int, cluster: LocalSparkCluster) -> int:
    """Return the executor that a worker in Python belongs to."""
    executors, pid = cluster.executors(), reader
    while pid not in executors:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
