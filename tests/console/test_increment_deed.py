"""An increment is started from a page: the command in a process of its own, one at a time."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.console.conftest import Browse
from tests.console.doing_steps import WHY, done, ended, look, start, state_of
from tests.console.planted_rows import NOW, insert_rows, run
from tests.console.test_doing import acts, token
from tests.console.test_finding_deeds import details
from tests.console.test_guard import PASSWORD, log_in
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import deeds_increment
from reliable_mq.console.deeds import NothingToDo
from reliable_mq.console.deeds_increment import increment_words
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


@pytest.mark.parametrize("option", ["--db", "--repair=apply", "--void", "--follow", "--app"])
def test_an_option_that_is_not_for_an_increment_is_refused(browse: Browse, option: str) -> None:
    with pytest.raises(ConfigurationError, match="increment_options --"):
        browse(increment_options=["--out", "x", option, "y"])


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
