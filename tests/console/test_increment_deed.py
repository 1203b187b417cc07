"""An increment is started from a page: the command in a process of its own, one at a time."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.console.conftest import Browse
from tests.console.doing_steps import WHY, done, ended, look, start, state_of
from tests.console.planted_rows import NOW, insert_rows, run
from tests.console.test_doing import acts, token
from tests.console.test_finding_deeds import details
from tests.console.test_guard import PASSWORD, log_in
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import ClientSettings, ReliableMQ
from reliable_mq.cli.main import build_app
from reliable_mq.client.configured import of_environment
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.console import deeds_increment
from reliable_mq.console.deeds import NothingToDo
from reliable_mq.console.deeds_increment import increment_environment, increment_words
from reliable_mq.console.sources import FLAGS_OF_INCREMENTS, ConsoleSources, checked_options
from reliable_mq.console.users import Role, add_user
from reliable_mq.errors import ConfigurationError

START = "increment-start"
SUMMARY = {"run_id": "run-9", "findings_total": 2, "clean": False}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replace the command by a program that the test writes."""
    program = tmp_path / "reconcile.py"
    monkeypatch.setattr(deeds_increment, "COMMAND", (sys.executable, str(program)))
    monkeypatch.setattr(deeds_increment, "LOOK_SECONDS", 0.02)
    return program


def says(command: Path, *, code: int, lines: str = "") -> None:
    text = f"import json, sys\nsys.stderr.write({lines!r})\nprint(json.dumps({SUMMARY!r}))\n"
    command.write_text(f"{text}sys.exit({code})\n")


def test_an_increment_is_the_command_with_the_databases_of_the_console(
    mq: ReliableMQ, browse: Browse, command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_APP", "another:mq")
    told = tmp_path / "told.json"
    command.write_text(
        "import json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(told)!r}, 'w'))\n"
        f"print(json.dumps({SUMMARY!r}))\nsys.exit(2)\n"
    )
    client = browse(increment_options=["--store", "/var/store"])
    assert "Start an increment" in client.get("/runs").text
    preview = look(client, START)
    assert "because there was no increment yet" in preview.text
    assert "--increment --json --store /var/store --out reconcile-output" in preview.text
    started = start(client, preview)
    assert ended(client, started)["counts"]["done"] == 1
    page = client.get(started.headers["location"]).text
    assert "run run-9: 2 findings" in page
    words, environment = json.loads(told.read_text())
    assert words[:2] == ["--increment", "--json"]
    url = mq.database.url.render_as_string(hide_password=False)
    assert environment["RELIABLE_MQ_DATABASE"] == url
    assert environment["RELIABLE_MQ_BROKER"] == mq.settings.broker
    assert "RELIABLE_MQ_APP" not in environment
    ((_, action, changed, number),) = acts(mq)
    assert (action, changed) == ("reconcile increment", 1)
    assert started.headers["location"] == f"/works/{number}"
    assert details(mq) == [{"why": WHY, "on": {"run_id": "run-9", "findings_total": 2}}]


def test_it_goes_on_in_the_folder_and_with_the_grace_of_the_last_one(tmp_path: Path) -> None:
    last = {"report": f"{tmp_path}/run-1/report.html", "grace_seconds": 90}
    assert increment_words([], last)[2:] == ["--grace", "90s", "--out", str(tmp_path)]
    assert increment_words(["--out", "x", "--grace", "1m"], last)[2:] == [
        *("--out", "x"),
        *("--grace", "1m"),
    ]
    there = last | {"report": "s3a://runs/run-1/report.html"}
    assert increment_words([], there)[-1] == "s3a://runs"
    with pytest.raises(NothingToDo, match="which this machine does not have"):
        increment_words([], last | {"report": "/no/where/run-1/report.html"})


def test_a_grace_time_that_was_given_is_kept_however_it_is_written() -> None:
    last = {"report": "s3a://runs/run-1/report.html", "grace_seconds": 600}
    words = increment_words(["--grace=5m", "--out=x"], last)
    assert words == ["--increment", "--json", "--grace=5m", "--out=x"]


@pytest.mark.parametrize(
    "option",
    [
        *("--db", "--repair=apply", "--void", "--follow", "--app"),
        *("--broker", "--broker=other:9876", "--cluster", "--table-prefix", "--prefix"),
        *("other:mq", "--", "-"),
    ],
)
def test_an_option_that_is_not_for_an_increment_is_refused(browse: Browse, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"increment_options {option.partition('=')[0]}:"):
        browse(increment_options=["--out", "x", "--partial", option, "y"])


def test_the_values_of_options_are_no_arguments() -> None:
    words = ["--out", "--db", "--full", "--store=x", "--memory", "2g"]
    assert checked_options(words) == tuple(words)


def test_the_options_without_a_value_are_those_of_the_command() -> None:
    command: Any = typer.main.get_command(build_app(["reconcile"]))
    reconcile = command.commands["reconcile"] if hasattr(command, "commands") else command
    options = [each for each in reconcile.params if getattr(each, "is_flag", False)]
    flags = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    assert flags - {"--follow", "--forget"} == FLAGS_OF_INCREMENTS


def test_the_account_and_tls_that_code_gave_are_handed_on_and_secrets_of_the_console_are_not(
    tmp_path: Path,
) -> None:
    account = Credentials(access_key="shop", secret_key="its secret", security_token="now")
    client = ClientSettings(credentials=account, tls=TLS(ca="/etc/ca.pem", verify=False))
    made = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/shop.db", client=client)
    inherited = {
        "PATH": "/bin",
        "RELIABLE_MQ_CONSOLE_SECRET": "of sessions",
        "RELIABLE_MQ_CONSOLE_OIDC_SECRET": "of the log-in",
        "RELIABLE_MQ_ACCESS_KEY": "another",
        "reliable_mq_client": '{"namespace": "bank"}',
        "RELIABLE_MQ_TLS_CERT": "/another.pem",
        "RELIABLE_MQ_NAMESPACE": "bank",
    }
    found = increment_environment(ConsoleSources(made), inherited)
    assert found == {
        "PATH": "/bin",
        "RELIABLE_MQ_DATABASE": made.database.url.render_as_string(hide_password=False),
        "RELIABLE_MQ_TABLE_PREFIX": "rmq_",
        "RELIABLE_MQ_BROKER": made.settings.broker,
        "RELIABLE_MQ_ACCESS_KEY": "shop",
        "RELIABLE_MQ_SECRET_KEY": "its secret",
        "RELIABLE_MQ_SECURITY_TOKEN": "now",
        "RELIABLE_MQ_TLS": "true",
        "RELIABLE_MQ_TLS_CA": "/etc/ca.pem",
        "RELIABLE_MQ_TLS_VERIFY": "false",
    }
    made.close()


def test_variables_say_the_same_as_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Credentials(access_key="shop", secret_key="its secret")
    client = ClientSettings(credentials=account, tls=TLS(cert="a.pem", key="b.pem", hostname="mq"))
    made = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/shop.db", client=client)
    for name, text in increment_environment(ConsoleSources(made), {}).items():
        monkeypatch.setenv(name, text)
    there = of_environment()
    assert (there.credentials, there.tls) == (client.credentials, client.tls)
    made.close()


@pytest.mark.parametrize(
    ("place", "namespace", "told"),
    [("shop.db", "bank", "does not support the namespace bank"), ("my shop.db", "", "has a space")],
)
def test_what_the_command_cannot_get_is_told_before(
    browse: Browse, tmp_path: Path, place: str, namespace: str, told: str
) -> None:
    made = ReliableMQ(
        *("shop",),
        database=f"sqlite:///{tmp_path}/{place}",
        broker=f"embedded:{tmp_path}/store",
        client=ClientSettings(namespace=namespace),
    )
    made.create_tables()
    answer = look(browse(made), START)
    assert answer.status_code == 409
    assert told in answer.text
    made.close()


def test_an_increment_that_fails_is_told_and_written(
    mq: ReliableMQ, browse: Browse, command: Path
) -> None:
    says(command, code=1, lines="reading\nerror: the store \x1b[31mis away\n")
    client = browse()
    started = start(client, look(client, START))
    assert ended(client, started)["state"] == "failed"
    page = client.get(started.headers["location"]).text
    assert "error: the store" in page
    check(page)
    assert [act[1:3] for act in acts(mq)] == [("reconcile increment", 0)]
    assert "is away" in details(mq)[0]["outcome"]
    command.write_text("print('no JSON')")
    assert ended(client, start(client, look(client, START)))["state"] == "failed"
    says(command, code=0)
    assert done(client, START) == {"done": 1}


def test_one_runs_at_a_time_and_cancel_stops_its_process(
    mq: ReliableMQ, browse: Browse, command: Path, tmp_path: Path
) -> None:
    number = tmp_path / "pid"
    command.write_text(
        "import os, pathlib, signal, sys\n"
        f"pathlib.Path({str(number)!r}).write_text(str(os.getpid()))\n"
        "print('judging', file=sys.stderr, flush=True)\n"
        "signal.pause()\n"
    )
    client = browse()
    first, second = look(client, START), look(client, START)
    started = start(client, first)
    place = started.headers["location"]
    until(lambda: "judging" in client.get(f"{place}/live").text)
    assert "under way already" in look(client, START).text
    counts = ended(client, start(client, second))["counts"]
    assert counts["changed since the preview"] == 1
    assert client.post(f"{place}/cancel", data=token(client)).status_code == 303
    until(lambda: state_of(client, place)["state"] == "cancelled")
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    assert [act[1:3] for act in acts(mq)] == [("reconcile increment", 0)]
    assert details(mq)[0]["outcome"] == "it was cancelled"


def test_only_an_operator_starts_one_and_only_where_spark_is(
    mq: ReliableMQ, browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "vera", Role.VIEWER, PASSWORD)
    viewer = browse(users=users)
    assert log_in(viewer, "vera") == 303
    assert "Start an increment" not in viewer.get("/runs").text
    assert look(viewer, START).status_code == 403
    monkeypatch.setattr(deeds_increment, "find_spec", lambda _name: None)
    answer = look(browse(), START)
    assert answer.status_code == 409
    assert "reliable-mq[spark]" in answer.text


def test_an_increment_names_the_run_that_it_continues(
    mq: ReliableMQ, browse: Browse, tmp_path: Path
) -> None:
    report = f"{tmp_path}/run-1/report.html"
    rows = [run(run_id="run-1", kind="increment", report=report), run(run_id="run-2")]
    insert_rows(mq.database, "reconcile_run", *rows)
    page = look(browse(), START).text
    assert f"since run run-1, {NOW:%Y-%m-%d}" in page
    assert f"--out {tmp_path}" in page
