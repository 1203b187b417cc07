"""The options of `reliable-mq reconcile`: in groups, and what does not fit is one line, code 1."""

import logging
import re
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer
from tests.reconcile.ledgers import GRACE, NOW, StoreWriter, TableWriter

from reliable_mq.cli import reconcile as reconcile_command
from reliable_mq.cli.main import run
from reliable_mq.cli.reconcile import FAILED
from reliable_mq.cli.reconcile_follow import follow_until_stopped
from reliable_mq.cli.reconcile_sources import source_options
from reliable_mq.cli.reconcile_stop import stoppable
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.runs.run_options import RunOptions

ROOT = Path(__file__).parents[2]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and what it printed."""
    with pytest.raises(SystemExit) as ended:
        run(["reconcile", *words])
    printed = capsys.readouterr()
    return int(str(ended.value.code)), printed.out, printed.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nosuch",), "No such option: --nosuch; see reliable-mq reconcile --help"),
        (("--stor", "x"), "--stor: did you mean --store? See reliable-mq reconcile --help"),
        (("--db",), "Option '--db' requires an argument"),
        (("--findings-max", "many"), "Invalid value for '--findings-max'"),
        (("--findings-max", "-1"), "Invalid value for '--findings-max'"),
        (("--repair", "plan", "--repair-rate", "fast"), "--repair-rate takes stubs per second"),
        (
            ("--repair", "plan", "--repair-only", "lost"),
            "--repair-only: there is no verdict",
        ),
        (("--repair", "plan", "--repair-only", "orphan"), "--repair-only cannot repair orphan"),
        (("--repair", "apply", "--void", "settled"), "--void cannot repair settled"),
        (("--void", "dead-lettered"), "--void needs --repair plan or --repair apply"),
        (("--repair-only", "stuck"), "--repair-only needs --repair plan or --repair apply"),
        (("--repair-rate", "5/s"), "--repair-rate needs --repair plan or --repair apply"),
        (("--prometheus", "nowhere/x.prom"), "--prometheus: there is no folder nowhere"),
        (("--out", ""), "--out is empty"),
        (("--out", __file__), "is a file, not a folder"),
        (("--every", "5s"), "--every needs --follow"),
        (("--follow", "--every", "5x"), "--every takes a duration like 90s"),
        (("--broker", "127.0.0.1:9876"), "--broker needs --repair apply"),
        (("--repair", "apply", "--broker", "nobody"), "name server 'nobody' is no host:port"),
        (("--increment", "--partial"), "brokers by a run without --increment, with --partial and"),
        (("--follow", "--export", "new"), "to a run without --increment, with --since to judge"),
        (("--export", "new", "--partial"), "that can be read, by a run without --export"),
        (("--grace", "9999999d"), "--grace takes a duration of at most 100 years"),
    ],
)
def test_what_does_not_fit_is_one_line_and_not_taken_for_findings(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: str,
) -> None:
    """Given bad usage, then exit code 1 before Spark starts: 2 is the code of findings."""
    monkeypatch.setattr("reliable_mq.reconcile.runs.spark_session._start_java", pytest.fail)
    code, out, err = told(capsys, "--db", "sqlite:///x.db", "--store", "x", *words)

    assert (code, out) == (FAILED, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_who_is_to_be_told_is_checked_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    store = StoreWriter(tmp_path / "store").write()
    words = ("--db", url, "--store", store, "--tell", "--out", str(tmp_path / "out"))

    code, _, err = told(capsys, *words)
    assert code == FAILED
    assert "reliable-mq create-tables" in err

    monkeypatch.setenv("RELIABLE_MQ_ESCALATION_MAIL_TO", "ops@shop.example")
    code, _, err = told(capsys, *words)
    assert (code, "escalation_mail_to needs an escalation_mail_server" in err) == (FAILED, True), (
        err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_ends_with_the_number_of_the_signal(
    capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    with pytest.raises(typer.Exit) as ended, stoppable():
        signal.raise_signal(number)

    assert ended.value.exit_code == 128 + number
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: stopped by {number.name}")
    assert signal.getsignal(number) is before


def test_a_run_that_fails_because_it_is_stopped_was_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loses_java() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ConnectionError from None

    with pytest.raises(typer.Exit) as ended, stoppable():
        loses_java()

    assert ended.value.exit_code == 128 + signal.SIGINT
    assert capsys.readouterr().err.startswith("error: stopped by SIGINT")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_follows_and_is_stopped_while_spark_is_imported_ends_with_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> object:
            signal.raise_signal(number)
            return None

    name = "reliable_mq.reconcile.runs.spark_follow"
    monkeypatch.setitem(sys.modules, name, Importing(name))
    run = RunOptions("sqlite://", "store", "out", NOW, GRACE)

    follow_until_stopped(run, timedelta(seconds=1), as_json=False, after=lambda _: None)

    told = capsys.readouterr().err
    assert told == f"stopped by {number.name} before the first increment had ended\n"


def test_failed_increments_are_log_lines_and_their_end_is_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Given three increments that fail and one that does not, then two lines say so."""

    def follow(*_: object, done: Any, failed: Any, **_more: object) -> None:
        for _number in range(3):
            failed(ConfigurationError("the store is away"))
        done(summary)
        done(summary)

    summary: dict[str, Any] = {"verdicts": {}}
    name = "reliable_mq.reconcile.runs.spark_follow"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(follow=follow))
    caplog.set_level(logging.INFO, "reliable_mq")
    run = RunOptions("sqlite://", "store", "out", NOW, GRACE)

    follow_until_stopped(run, timedelta(seconds=1), as_json=True, after=lambda _: None)

    assert [record.event for record in caplog.records if hasattr(record, "event")] == [
        *("operation_failing", "operation_works")
    ]
    assert caplog.messages[0] == "reconcile --follow: the store is away"
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), (None, None)),
        (("--log-format", "json", "--log-level", "debug"), ("json", "debug")),
    ],
)
def test_who_follows_chooses_the_log(
    words: tuple[str, ...],
    wanted: tuple[str | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    asked: list[object] = []
    for name in ("RELIABLE_MQ_LOG_FORMAT", "RELIABLE_MQ_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(reconcile_command, "write_log", lambda *given: asked.append(given))
    monkeypatch.setattr(reconcile_command, "follow_until_stopped", lambda *_, **_more: None)
    place = ("--db", "sqlite://", "--store", "s", "--out", str(tmp_path), "--follow")

    assert told(capsys, *place, *words)[0] == 0

    assert asked == [wanted]


def test_who_follows_an_application_gets_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "followed_shop.py").write_text(
        "from reliable_mq import ReliableMQ\n"
        "mq = ReliableMQ('shop', database='sqlite:///x.db', broker='a:1', log_format='json')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    read = source_options(application="followed_shop:mq").read()

    assert (read.log_format, read.log_level) == ("json", None)


def test_help_shows_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--help")

    assert code == 0
    groups = re.findall(r"^(\w[\w ]+):\n", out, re.MULTILINE)
    expected = ["The ledgers", "What is judged", "Output", "Repair", "Notifications"]
    assert [group for group in groups if group != "Usage"] == [*expected, "Options"]
    assert re.findall(r"^  (?:-h, )?--[\w-]+", out.partition("\nOptions:")[2], re.MULTILINE) == [
        "  -h, --help"
    ], "nothing is without a group"


def test_every_option_is_explained_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "--help")
    explained = (ROOT / "docs" / "explanation" / "reconciliation.md").read_text()

    options = set(re.findall(r"^  (--[\w-]+)", out, re.MULTILINE))
    assert {option for option in options if f"`{option}" not in explained} == set()


@pytest.mark.parametrize(("planned", "sends"), [(3, 1), (0, 0)])
def test_what_is_due_is_sent_also_where_a_repair_left_it_to_the_scheduler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, planned: int, sends: int
) -> None:
    """Given findings whose stubs a scheduler has in hand, so that nothing is changed, when no
    scheduler runs and a broker is named, then what is due is sent."""
    called: list[str] = []
    repair = {"planned": planned, "changed": 0}
    summary = {"exit_code": 2, "repair": repair}
    monkeypatch.setattr("reliable_mq.reconcile.runs.spark_run.reconcile", lambda _options: summary)

    def send(db: str, *_: str) -> int:
        called.append(db)
        return 5

    monkeypatch.setattr("reliable_mq.cli.reconcile.send_what_is_due", send)
    words = ("--db", "sqlite:///x.db", "--store", "x", "--json", "--repair", "apply")

    code, _, err = told(capsys, *words, "--broker", "127.0.0.1:9876")

    assert (code, err, len(called)) == (2, "", sends)
    assert summary["repair"].get("sent") == (5 if sends else None)  # type: ignore[attr-defined]
