"""The page on running it daily: every command on it is one that the command line takes."""

import configparser
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer.main
from jinja2 import Template

from reliable_mq.cli.main import build_app
from reliable_mq.reconcile.databases.sql_connection import sync_url
from reliable_mq.reconcile.moments import parse_moment

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "reconciliation_daily.md").read_text()
WORDS = ("reliable-mq", "reconcile")
PATH_OF_CRON = "/usr/bin:/bin"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def options_of(words: list[str]) -> dict[str, Any]:
    """Read the words behind `reliable-mq reconcile` as the command line does; return the options.

    Whatever it does not know, it ends the process for.
    """
    command = typer.main.get_command(build_app(["reconcile"]))
    verb = command.commands["reconcile"]  # type: ignore[attr-defined]
    given: dict[str, Any] = verb.make_context("reconcile", list(words)).params
    since, until = given["since"], given["until"]
    assert not since or parse_moment(since, "--since", NOON) < NOON
    assert not until or parse_moment(until, "--until", NOON)
    return given


def commands_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the options of each command in a shell text."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        for at in range(len(words) - 1):
            if words[at].endswith(WORDS[0]) and words[at + 1] == WORDS[1]:
                yield options_of(words[at + 2 :])


def test_every_option_that_the_text_names_is_one() -> None:
    named = re.findall(r"`(--[^`]+)`", PAGE)
    known = [words for text in named if " " in text for words in [shlex.split(text)]]

    assert known
    for words in known:
        options_of(words)
    names = {word for text in named for word in text.split() if word.startswith("--")}
    command = typer.main.get_command(build_app(["reconcile"])).commands["reconcile"]  # type: ignore[attr-defined]
    assert names <= {name for option in command.params for name in option.opts}


def test_the_line_for_cron_is_one() -> None:
    (line,) = blocks("cron")
    schedule, user, shell = re.fullmatch(r"((?:\S+ ){5})(\S+) (.+)\n", line).groups()  # type: ignore[union-attr]

    minute, hour, *days = schedule.split()
    assert (int(minute) < 60, int(hour) < 24, days, user) == (True, True, ["*"] * 3, "mq")
    assert "%" not in shell, "cron takes it for a line break"
    (given,) = commands_in(shell)
    assert (given["increment"], given["tell"]) == (True, True)
    assert f"nice /usr/local/bin/{WORDS[0]} {WORDS[1]}" in shell, (
        "cron looks into /usr/bin and /bin"
    )
    subprocess.run(["sh", "-n", "-c", shell], check=True)


@pytest.mark.skipif(shutil.which("flock", path=PATH_OF_CRON) is None, reason="no flock")
def test_the_line_for_cron_runs_as_cron_runs_it(tmp_path: Path) -> None:
    """Given the line with its paths below a folder, when the shell runs it with next to no
    environment, then the command has the settings of the file, lowered priority and all options,
    and its exit code is the line's; while a run holds the lock, there is no second one."""
    shell = re.sub(r"(?<=\s)/(?=\w)", f"{tmp_path}/", blocks("cron")[0].split(" mq ", 1)[1])
    settings, lock, command = (
        tmp_path / name
        for name in (
            *("etc/reliable-mq/reconcile.env", "run/lock/reconcile"),
            "usr/local/bin/reliable-mq",
        )
    )
    for path in (settings, lock, command):
        path.parent.mkdir(parents=True)
    settings.write_text(blocks("sh")[0])
    command.write_text('#!/bin/sh\necho "$(nice) $RELIABLE_MQ_ESCALATION_MAIL_FROM $*"\nexit 2\n')
    command.chmod(0o755)

    def run() -> tuple[int, str]:
        words = ["env", "-i", f"PATH={PATH_OF_CRON}", "sh", "-c", shell]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ended.stderr == ""
        return ended.returncode, ended.stdout

    code, said = run()
    niceness, _, told = said.partition(" ")
    sender, _, words = told.partition(" reconcile ")
    assert (code, sender) == (2, "Shop MQ <mq@shop.example>")
    assert int(niceness) == min(19, os.nice(0) + 10)
    assert options_of(shlex.split(words))["increment"]

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run() == (1, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """Given the units of the page, their command and the unit that tells of failures."""
    command = "/usr/local/bin/reliable-mq"
    service, timer = blocks("ini")
    units = {
        "reliable-mq-reconcile.service": service.replace(command, sys.executable),
        "reliable-mq-reconcile.timer": timer,
        "notify-operators@.service": f"[Service]\nType=oneshot\nExecStart={sys.executable}\n",
    }
    for name, text in units.items():
        (tmp_path / name).write_text(text)

    found = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in list(units)[:2])],
        capture_output=True,
        text=True,
        check=False,
    )

    assert command in service
    assert (found.returncode, found.stderr) == (0, "")


def test_the_units_of_systemd_are_units() -> None:
    service, timer = (configparser.ConfigParser(interpolation=None) for _ in range(2))
    for parser, text in zip((service, timer), blocks("ini"), strict=True):
        parser.read_string(text)

    (given,) = commands_in(service["Service"]["ExecStart"])
    assert given["tell"], "or nobody would hear of what SuccessExitStatus passes over"
    assert service["Service"]["SuccessExitStatus"] == "2"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 03:15:00"


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[str, dict[str, Any]]]]:
    """Give what runs an example as Airflow loads it, and returns its operators with what they got.

    Airflow is not installed: its modules are given as far as the examples name them.
    """
    made: list[tuple[str, dict[str, Any]]] = []

    class Dag:
        def __init__(self, **given: Any) -> None:
            made.append(("DAG", given))

        def __enter__(self) -> "Dag":
            return self

        def __exit__(self, *_: object) -> None: ...

    def operator(name: str) -> Callable[..., None]:
        return lambda **given: made.append((name, given))

    known: dict[str, dict[str, Any]] = {
        "airflow.sdk": {"DAG": Dag},
        "airflow.providers.standard.operators.bash": {"BashOperator": operator("bash")},
        "airflow.providers.apache.spark.operators.spark_submit": {
            "SparkSubmitOperator": operator("spark")
        },
    }
    for path, members in known.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
        vars(sys.modules[path]).update(members)

    def load(source: str) -> list[tuple[str, dict[str, Any]]]:
        made.clear()
        exec(compile(source, "dag.py", "exec"), {"__name__": "dag"})
        return list(made)

    return load


def examples(word: str) -> str:
    (found,) = (block for block in blocks("python") if word in block)
    return found


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 99)])
def test_airflows_task_is_skipped_for_findings_and_fails_for_failures(
    airflow: Callable[[str], list[tuple[str, dict[str, Any]]]],
    tmp_path: Path,
    code: int,
    ends: int,
) -> None:
    """Given the example, when its shell is run with a command that ends with a code, then the task
    ends as the page says; its window ends where Airflow's interval does."""
    (_, dag), (name, given) = airflow(examples("BashOperator"))
    interval = {"data_interval_end": NOON}
    shell = Template(given["bash_command"]).render(**interval)
    command = tmp_path / "reliable-mq"
    command.write_text(f"#!/bin/sh\nexit {code}\n")
    command.chmod(0o755)

    done = subprocess.run(
        ["bash", "-c", shell],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )

    assert (name, done.returncode) == ("bash", ends)
    (options,) = commands_in(shell)
    assert parse_moment(options["until"], "--until", NOON) == NOON
    assert (given["skip_on_exit_code"], dag["max_active_runs"]) == (99, 1)
    assert given["retry_delay"] < timedelta(hours=1)


def test_airflows_spark_task_gives_the_command_what_it_takes(
    airflow: Callable[[str], list[tuple[str, dict[str, Any]]]],
) -> None:
    (_, (name, given)) = airflow(examples("SparkSubmitOperator"))

    options = options_of(given["application_args"])
    assert (name, options["out"]) == ("spark", "s3a://shop-reports/reconcile")
    assert given["application"] in PAGE.partition("## On a Spark cluster")[2]
    assert given["retries"] == 0, "findings would be found again"


@pytest.mark.parametrize("word", ["BashOperator", "SparkSubmitOperator"])
def test_airflows_url_of_the_database_is_one_that_the_command_takes(
    airflow: Callable[[str], list[tuple[str, dict[str, Any]]]], word: str
) -> None:
    """Given a connection whose URL Airflow writes in its own way, as version 3.3 does."""
    (_, (_, given)) = airflow(examples(word))
    connection = SimpleNamespace(get_uri=lambda: "postgres://mq:se%20cret@db.shop.example/shop")
    names = {"conn": SimpleNamespace(shop=connection)}

    text = (given.get("env") or given["env_vars"])["RELIABLE_MQ_DATABASE"]
    url = sync_url(Template(text).render(**names))

    assert url.drivername == "postgresql+psycopg"
    assert (url.password, url.host) == ("se cret", "db.shop.example")


@pytest.mark.parametrize(
    "page", ["explanation/reconciliation.md", "how-to/reconciliation_daily.md"]
)
def test_no_command_of_the_pages_ends_at_a_semicolon_between_addresses(page: str) -> None:
    """Given a command with two name servers, then a shell takes it for one command."""
    text = (DOCS / page).read_text()
    lines = re.findall(r"^(?:reliable-mq|spark-submit) [^\\\n]+", text, re.MULTILINE)

    assert lines
    for line in lines:
        assert ";" not in list(shlex.shlex(line, posix=True, punctuation_chars=True)), line


def test_the_script_for_spark_submit_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = (block for block in blocks("python") if "sys.argv" in block)
    monkeypatch.setattr(sys, "argv", ["reconcile.py", "--nosuch"])
    with pytest.raises(SystemExit) as ended:
        exec(compile(script, "reconcile.py", "exec"), {})
    assert ended.value.code == 1

    (submit,) = (block for block in blocks("sh") if "spark-submit" in block)
    words = shlex.split(submit.replace("\\\n", " "))
    options = options_of(words[words.index("/opt/reliable-mq/reconcile.py") + 1 :])
    assert options["since"] == "-3d"
