"""The command line as a whole: quick to start, one line for a failure, the right exit code."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from reliable_mq.cli.main import (
    BAD_USAGE,
    DONE,
    FAILED,
    VERBS,
    build_app,
    explain,
    run,
)
from reliable_mq.errors import ConfigurationError, ConnectionLost
from reliable_mq.extras import EXTRA_OF_MODULE

ROOT = Path(__file__).parents[2]


def reliable_mq(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reliable_mq.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_verb() -> None:
    shown = reliable_mq("--help")

    assert shown.returncode == 0
    assert all(f"\n  {verb} " in shown.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("nosuchverb", "error: No such command 'nosuchverb'; see reliable-mq --help"),
        ("worker shop:mq", "error: No such command 'worker': did you mean 'run'? See reliable-mq"),
        ("lag", "error: No such command 'lag': did you mean 'group progress'? See reliable-mq"),
        ("broker --nosuchoption", "error: No such option: --nosuchoption; see reliable-mq broker"),
        (
            "stub list --topc x",
            "error: No such option: --topc: did you mean --topic? See reliable-mq",
        ),
        (
            "run shop:mq --workers 4",
            "error: No such option: --workers: did you mean --processes? See reliable-mq run",
        ),
        (
            "doctor shop:mq --format json",
            "error: No such option: --format: did you mean --json? See reliable-mq doctor --help\n",
        ),
        ("stub list --stor x", "error: No such option: --stor; see reliable-mq stub list --help\n"),
        ("stub list --status x", "error: Invalid value for '--status': 'x' is not one of 'unconf"),
        ("topic create", "error: Missing argument 'topic'; see reliable-mq topic create --help"),
        ("topic create t --queues 0", "error: Invalid value for '--queues': "),
        ("topic create t --queues many", "error: Invalid value for '--queues': "),
    ],
)
def test_bad_usage_is_told_in_one_line_and_exits_with_2(
    words: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words.split())
    shown = capfd.readouterr()

    assert ended.value.code == BAD_USAGE
    assert shown.err.startswith(line)
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.parametrize("words", ["", "topic"])
def test_who_names_no_verb_is_shown_which_there_are(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words.split())

    assert ended.value.code == BAD_USAGE
    assert "Commands:" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (typer.Exit(3), 3, ""),
        (typer.Abort(), FAILED, "Aborted!\n"),
        (
            typer.BadParameter("no moment"),
            BAD_USAGE,
            "error: Invalid value: no moment; see reliable-mq --help\n",
        ),
        (None, DONE, ""),
    ],
)
def test_a_command_ends_with_the_code_that_it_says(
    outcome: object,
    code: int,
    told: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command() -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    monkeypatch.setattr("reliable_mq.cli.main.build_app", lambda _: app)
    with pytest.raises(SystemExit) as ended:
        run([])

    assert ended.value.code == code
    assert capfd.readouterr().err == told


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_module_that_offers_it(name: str) -> None:
    build_app([name])


def test_a_failure_is_one_line_and_says_whose_fault_it_was() -> None:
    assert explain(ConnectionLost("the broker\nwent away")) == ("the broker went away", FAILED)
    assert explain(ConfigurationError("broker: no port")) == ("broker: no port", BAD_USAGE)
    assert explain(ZeroDivisionError("a bug")) is None


def test_a_missing_extra_is_named() -> None:
    error = ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    assert explain(error) == (
        "pyspark.sql is not installed; pip install 'reliable-mq[spark]'",
        BAD_USAGE,
    )
    assert explain(ModuleNotFoundError("No module named 'bug'", name="bug")) is None


@pytest.mark.parametrize("module", EXTRA_OF_MODULE)
def test_every_module_of_an_extra_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def imported_by(path: Path) -> Iterator[str]:
    """Yield the top-level names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_every_import_that_a_plain_install_lacks_names_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[\[>=<]", line)[0].replace("-", "_") for line in project["dependencies"]}
    core |= {"pydantic_core", "greenlet"}  # of pydantic, and of sqlalchemy[asyncio]
    core.add("pytest")  # it loads its plugin, and who writes tests has it
    ours = {"reliable_mq", "examples"}
    folders = ("src/reliable_mq", "examples/demo", "examples/shop")  # what the wheel has
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    imported = {name for path in files for name in imported_by(path)}

    assert imported - sys.stdlib_module_names - core - ours <= EXTRA_OF_MODULE.keys()
    assert set(EXTRA_OF_MODULE.values()) <= project["optional-dependencies"].keys()


def test_a_database_that_is_down_is_told_in_the_drivers_words(postgres_url: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(postgres_url.replace("/test_", "/nosuch_"))
    with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
        engine.connect()
    explained = explain(caught.value)

    assert explained is not None
    assert explained[0].startswith("database: ")
    assert "does not exist" in explained[0]
    assert "\n" not in explained[0]
