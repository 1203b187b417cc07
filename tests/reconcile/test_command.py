"""`reliable-mq reconcile`: bad input; as a process its output and secrets, without Java."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import select
from tests.cli.test_secrets import PLANTED, command_lines, leaks, postgres
from tests.postgres_databases import new_database
from tests.reconcile.cases import Cases
from tests.reconcile.ledgers import StoreWriter, TableWriter, message_id
from tests.waiting import until

from reliable_mq.cli import main
from reliable_mq.database.sql_database import Database
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.testing.local_servers import LocalPostgres

COMMAND = (sys.executable, "-m", "reliable_mq.cli.main", "reconcile")
START_SECONDS_MAX = 180.0  # of Spark
EVENT_LOG = """
spark.eventLog.enabled true
spark.eventLog.dir file://{}
spark.eventLog.compress false
"""


def run(
    *words: str, environment: dict[str, str], folder: Path
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run the command; return how it ended, and the command lines that were seen meanwhile."""
    seen: set[str] = set()
    told = [folder / name for name in ("printed", "errors")]
    with told[0].open("wb") as out, told[1].open("wb") as errors:
        process = subprocess.Popen([*COMMAND, *words], env=environment, stdout=out, stderr=errors)

        def has_ended() -> bool:
            seen.update(command_lines(process.pid))
            return process.poll() is not None

        try:
            until(has_ended, seconds=START_SECONDS_MAX, look_seconds=0.1)
        finally:
            process.kill()
            code = process.wait()
    printed, said = (path.read_text() for path in told)
    return subprocess.CompletedProcess(words, code, printed, said), seen


@pytest.fixture
def ledgers(tmp_path: Path) -> tuple[str, str]:
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"x", topic="free")  # a store without any message is not whole
    return url, store.write()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--db": None}, "--db is missing"),
        ({"--store": None}, "--store is missing"),
        ({"--store": "nowhere"}, "nowhere is not a store directory: it does not exist"),
        ({"--store": "."}, "has no folder commitlog"),
        ({"--store": __file__}, "is not a store directory: it is a file"),
        ({"--store": None, "--cluster": "nobody"}, "name server 'nobody' is no host:port"),
        ({"--store": None, "--cluster": "127.0.0.1:1"}, "no name server answers (127.0.0.1:1: "),
        ({"--cluster": "127.0.0.1:1"}, "with --cluster, a store needs its broker's name"),
        ({"--db": "shop.db"}, "not a database URL"),
        ({"--db": "oddsql://host/name"}, "not a database URL"),
        ({"--db": "postgresql+psycopg://u@host:port/x"}, "not a database URL"),
        ({"--db": "postgresql+psycopg://nobody@127.0.0.1:1/x"}, "database:"),
        ({"--db": "sqlite:////nowhere/shop.db"}, "'/nowhere/shop.db' does not exist"),
        (
            {"--table-prefix": "other_"},
            "no table other_consume_log and no table other_message_stub",
        ),
        ({"--since": "yesterday"}, "--since takes a time like"),
        ({"--until": "-3x"}, "--until takes a duration like"),
        ({"--grace": "soon"}, "--grace takes a duration like"),
        ({"--since": "2999-01-01"}, "--since 2999-01-01T00:00:00+00:00 is in the future"),
        ({"--since": "2026-11-20", "--until": "2026-11-19"}, "--since must be before --until"),
        ({"--db-share": "0"}, "--db-share takes a share above 0, up to 1, not 0.0"),
        ({"--repair": "all"}, "--repair takes plan or apply"),
        ({"--slave-store": "nowhere"}, "nowhere is not a store directory: it does not exist"),
        ({"--slave-store": "b=there"}, "--slave-store b=there: its master is not given"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(
    ledgers: tuple[str, str],
    tmp_path: Path,
    change: dict[str, str | None],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given bad input, then exit code 1 and not 2, which means findings; nothing is written."""
    words = {"--db": ledgers[0], "--store": ledgers[1], "--out": str(tmp_path / "out"), **change}

    typed = [word for name, value in words.items() if value for word in (name, value)]
    with pytest.raises(SystemExit) as ended:
        main.run(["reconcile", *typed])

    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (1, "")
    (line,) = printed.err.splitlines()
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


class Done(NamedTuple):
    """A run of the command over a ledger with one lost message, and where it was done."""

    process: subprocess.CompletedProcess[str]
    command_lines: set[str]
    folder: Path
    url: str
    lost: str


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: LocalPostgres
) -> Iterator[Done]:
    """Give a run without Java on the PATH and JAVA_HOME, with a mail server that is down, with
    secrets in the URL of its database, and with Spark's event log."""
    folder = tmp_path_factory.mktemp("without-java")
    with new_database(postgres_server, __name__) as there:
        place, _, name = there.rpartition("@")[2].partition("/")
        yield _run_there(folder, postgres(place, name))


def _run_there(folder: Path, url: str) -> Done:
    database = Database(url, prefix="rmq_", connections=1)
    database.create_tables()
    database.close()
    cases = Cases(url, folder / "store")
    lost, queue = cases.new(payments=Verdict.LOST)
    cases.stub(lost, "payments", broker_name="broker-a", queue_id=queue, offset=9, count=1)
    other, queue = cases.new(ack=Verdict.UNMANAGED)  # a store without any message is not whole
    cases.send(other, queue, topic="free")
    _, store = cases.write()
    for each in ("conf", "events"):
        (folder / each).mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(EVENT_LOG.format(folder / "events"))
    (folder / "url").write_text(url)
    environment = {"PATH": path_without_java(folder / "bin"), "HOME": str(folder)}
    environment |= {"SPARK_CONF_DIR": str(folder / "conf")}
    mail = {"SERVER": "smtp://127.0.0.1:9", "FROM": "mq@shop.example", "TO": "ops@shop.example"}
    environment |= {f"RELIABLE_MQ_ESCALATION_MAIL_{name}": text for name, text in mail.items()}
    kept = ("PYTHONPATH", "SPARK_SUBMIT_OPTS")  # the second one: see `tests.spark_archive`
    environment |= {name: value for name, value in os.environ.items() if name in kept}
    words = ("--db", f"@{folder / 'url'}", "--store", store, "--out", str(folder / "out"), "--json")
    people = ("--prometheus", str(folder / "reconcile.prom"), "--tell", "--repair", "plan")
    process, seen = run(*words, *people, environment=environment, folder=folder)
    return Done(process, seen, folder, url, lost)


@pytest.mark.spark
def test_it_runs_on_the_wheels_java_when_none_is_installed(done: Done) -> None:
    """Given no Java on the PATH and no JAVA_HOME, when the command runs, then it reconciles; with
    --json it prints the summary and nothing else, and exits 2 for the finding."""
    assert done.process.returncode == 2, done.process.stderr
    summary = json.loads(done.process.stdout)
    assert [finding["message_id"] for finding in summary["findings"]] == [done.lost]
    assert summary["verdicts"] == {"lost by the broker": 1, "unmanaged": 1}
    assert "Exception" not in done.process.stderr
    names = {path.name for path in (done.folder / "out").iterdir()}
    assert names >= {"report.html", "summary.json", "verdicts.parquet", "latest.json"}


@pytest.mark.spark
def test_its_findings_are_in_the_metrics_and_wait_for_people_who_cannot_be_told_now(
    done: Done,
) -> None:
    """Given a mail server that is down, when a run finds something, then that is told in one
    warning, changes no exit code, and waits in the database with what is to be told."""
    metrics = (done.folder / "reconcile.prom").read_text()
    assert "reliable_mq_reconcile_findings 1\n" in metrics
    assert (
        'reliable_mq_reconcile_verdicts{verdict="lost by the broker",topic="orders",'
        'consumer_group="payments"} 1\n'
    ) in metrics
    assert 'reliable_mq_reconcile_repairs{action="resend",state="planned"} 1\n' in metrics
    summary = json.loads(done.process.stdout)
    assert (summary["told"], summary["findings_kept"]) == (1, 1)
    assert "was not sent" in done.process.stderr
    database = Database(done.url, prefix="rmq_", connections=1)
    with database.engine.connect() as connection:
        (told,) = connection.execute(select(database.escalations)).all()
        (alert,) = connection.execute(select(database.alerts)).all()
    database.close()
    assert (told.kind, told.message_id, told.close_date) == (
        *("reconciliation", summary["run_id"]),
        None,
    )
    assert told.reason == (
        f"1 new finding: 1 lost by the broker; the oldest is message {done.lost};"
        f" report: {summary['report']}"
    )
    assert (alert.state, alert.escalation_seq) == (0, told.seq)


@pytest.mark.spark
@pytest.mark.processes
def test_a_run_shows_no_password(done: Done) -> None:
    """Not in lists of processes, reports or output, nor in Spark's event log, which records plans
    and options."""
    assert PLANTED["database"] in done.url
    assert any("java" in each for each in done.command_lines)
    assert not leaks("\n".join(done.command_lines))
    events, report = done.folder / "events", done.folder / "out"
    files = [each for top in (events, report) for each in top.rglob("*") if each.is_file()]
    assert any(each.stat().st_size > 10_000 for each in files if events in each.parents)
    for file in (*files, *(done.folder / name for name in ("printed", "errors", "reconcile.prom"))):
        assert not leaks(file.read_bytes().decode("latin-1")), file


def test_a_database_that_is_away_or_has_no_tables_is_named_without_its_password(
    postgres_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, _, name = postgres_url.rpartition("@")[2].partition("/")
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"x", topic="free")
    words = ["--store", store.write(), "--out", str(tmp_path / "report")]
    for url, says in (
        (postgres("127.0.0.1:1"), "database:"),
        (postgres(place, name), "has no table rmq_consume_log"),
        (postgres(place, name).replace("+psycopg", "+odd"), "not a database URL"),
    ):
        with pytest.raises(SystemExit) as ended:
            main.run(["reconcile", "--db", url, *words])

        assert ended.value.code == 1
        printed = capfd.readouterr()
        assert says in printed.err
        assert not leaks(printed.out + printed.err)
