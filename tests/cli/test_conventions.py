"""One convention for all commands: the application, the environment, names of options, output."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main

from reliable_mq import ReliableMQ
from reliable_mq.cli.commands import OLD_OPTIONS, VerbCommand
from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, VERBS, build_app, run

Call = Callable[..., tuple[int, str, str]]

#: options that name a place, in a command that needs one; and what has no place
PLACELESS = {"broker", "namesrv", "proxy", "init", "demo", "walk"}
SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database={database!r}, broker="127.0.0.1:1")

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
"""


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Give a call of the command line in this process: exit code, output, errors."""
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Give the URL of a database with our tables."""
    url = f"sqlite:///{tmp_path}/shop.db"
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return url


@pytest.fixture
def shop(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give an application in the current folder, as MODULE:OBJECT."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(database=database))
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield f"{name}:mq"
    sys.path[:] = path
    sys.modules.pop(name, None)


def commands() -> dict[str, Any]:
    """Return all commands with their typer objects, by their words."""
    found: dict[str, Any] = {}
    for verb in VERBS:
        group: Any = typer.main.get_command(build_app([verb]))
        command = group.commands[verb]
        inner = getattr(command, "commands", None)
        if inner is None:
            found[verb] = command
        else:
            found |= {f"{verb} {name}": each for name, each in inner.items()}
    return found


def options_of(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts if name.startswith("--")}


COMMANDS = commands()


@pytest.mark.parametrize("words", [each for each in COMMANDS if each not in PLACELESS])
def test_every_command_that_needs_an_application_takes_it_by_app(words: str) -> None:
    assert "--app" in options_of(COMMANDS[words])


@pytest.mark.parametrize("verb", [each for each in COMMANDS if each not in PLACELESS])
def test_a_verb_without_another_argument_takes_the_application_as_its_argument(verb: str) -> None:
    arguments = [each for each in COMMANDS[verb].params if each.param_type_name == "argument"]

    if " " not in verb:
        assert arguments
        assert arguments[0].metavar in ("[MODULE:OBJECT]", "[TOPIC]")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_knows_old_names_of_options(words: str) -> None:
    assert isinstance(COMMANDS[words], VerbCommand)


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_has_an_old_name_of_an_option_as_its_own_beside_the_new_one(words: str) -> None:
    options = options_of(COMMANDS[words])

    assert not [old for old, new in OLD_OPTIONS.items() if old in options and new in options]


@pytest.mark.parametrize("words", COMMANDS)
def test_one_option_has_one_meaning(words: str) -> None:
    """Given the name of an option, then its value has the same form in all commands."""
    forms = {
        "--app": "MODULE:OBJECT",
        "--db": "URL",
        "--redis": "URL",
        "--broker": "HOST:PORT;…",
    }
    for param in COMMANDS[words].params:
        for name in forms.keys() & {*param.opts}:
            assert param.metavar == forms[name], (words, name)


@pytest.mark.parametrize("words", COMMANDS)
def test_one_thing_has_one_name(words: str) -> None:
    """Given an old name of an option, then no command has it with the meaning of the new one."""
    assert not options_of(COMMANDS[words]) & {"--count", "--prefix", "--at"}


def test_the_application_is_an_option_an_argument_or_a_variable(
    call: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_option = call("create-tables", "--app", shop)
    assert by_option[0] == DONE
    assert call("create-tables", shop) == by_option
    assert call("create-tables", shop, "--app", shop) == by_option
    monkeypatch.setenv("RELIABLE_MQ_APP", shop)
    assert call("create-tables") == by_option
    assert call("stub", "list")[2] == "no stub matches\n"
    assert call("migrate", "--check")[0] == DONE
    assert call("notifiers", "--json")[0] == DONE
    code, _, err = call("topic", "list")
    assert (code, "127.0.0.1:1" in err) == (FAILED, True), "the broker is the application's"


def test_what_is_typed_wins_over_the_variables(
    call: Call, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_APP", "nowhere:mq")
    monkeypatch.setenv("RELIABLE_MQ_DATABASE", "sqlite:///nowhere.db")
    assert call("stub", "list", "--db", database)[::2] == (DONE, "no stub matches\n")
    assert "no module 'nowhere'" in call("stub", "list")[2], "the application before the database"
    assert "'elsewhere'" in call("stub", "list", "--app", "elsewhere:mq")[2]


def test_two_applications_are_one_line(call: Call) -> None:
    code, _, err = call("doctor", "a:mq", "--app", "b:mq")

    assert (code, err) == (
        BAD_USAGE,
        "error: two applications are named: a:mq and --app b:mq; give one\n",
    )


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (("stub", "list", "--prefix", "rmq_"), "--prefix", "--table-prefix"),
        (("stub", "list", "--prefix=rmq_"), "--prefix", "--table-prefix"),
        (("migrate", "--sql", "--since", "0001"), "--since", "--from-revision"),
    ],
)
def test_an_old_name_of_an_option_works_with_one_warning(
    call: Call, database: str, words: tuple[str, ...], old: str, new: str
) -> None:
    code, _, err = call(*words, "--db", database)

    assert code == DONE
    assert err.splitlines()[0] == f"warning: {old} is called {new} now"
    assert err.count("warning") == 1


def test_old_names_of_options_of_a_cluster_work(call: Call) -> None:
    at = ("--broker", "127.0.0.1:1")
    code, _, err = call("topic", "create", "t", "--at", "one", "--at", "two", *at)
    assert (code, err.splitlines()[0]) == (FAILED, "warning: --at is called --broker-name now")
    assert err.count("warning") == 1
    assert (
        "--count is called --limit"
        in call("message", "at", "t", "b", "0", "0", "--count=2", *at)[2]
    )


def test_the_value_of_an_option_is_no_old_name(call: Call, database: str) -> None:
    """Given a value that looks like an old name, then it stays."""
    words = ("stub", "list", "--note-holds", "--prefix", "--db", database)

    assert call(*words)[2] == "no stub matches\n"


def test_the_database_name_has_a_name_of_its_own(call: Call, shop: str) -> None:
    code, _, err = call("stub", "list", "--app", shop, "--database", "main")

    assert code == DONE
    assert err.splitlines() == [
        "warning: --database is called --database-name now",
        "no stub matches",
    ]


def test_json_has_times_with_a_zone_and_real_lists(call: Call, database: str) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=database, relay_lease_seconds=60.0)
    mq.topic("orders", groups=["payments", "mail"])
    with mq.transaction() as tx:
        tx.send("orders", {"id": 1}, key=4711, tag="placed")
    mq.close()

    (listed,) = json.loads(call("stub", "list", "--db", database, "--json")[1])

    assert datetime.fromisoformat(listed["create_date"]).tzinfo is not None
    assert "T" in listed["create_date"]
    assert listed["required_groups"] == ["mail", "payments"]
    shown = json.loads(call("stub", "show", "4711", "--db", database, "--json")[1])
    assert shown["required_groups"] == ["mail", "payments"]
    assert all(each["time"] is None or "T" in each["time"] for each in shown["timeline"])
    table = call("stub", "list", "--db", database)[1]
    head, row, *_ = table.splitlines()
    assert head.split()[:7] == ["message", "id", "time", "age", "topic", "tag", "key"]
    assert "placed" in row
    assert "mail, payments" in row


def test_an_empty_list_says_so_and_is_a_list_in_json(call: Call, database: str) -> None:
    assert call("stub", "list", "--db", database) == (DONE, "", "no stub matches\n")
    assert call("stub", "list", "--db", database, "--json") == (DONE, "[]\n", "")
    assert call("pause", "--db", database) == (DONE, "", "no topic is paused or closed\n")
    assert call("pause", "--db", database, "--json") == (DONE, "[]\n", "")


def printed(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reliable_mq.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_is_as_wide_as_the_terminal() -> None:
    def width(columns: int) -> int:
        lines = printed("reconcile", "--help", COLUMNS=str(columns)).stdout.splitlines()
        return max(map(len, lines))

    assert 130 < width(150) <= 150
    assert width(90) <= 90


@pytest.mark.parametrize(
    ("typed", "word"),
    [("reliable-mq sta stu", "stub"), ("reliable-mq stub sh", "show"), ("reliable-mq dl", "dlq")],
)
def test_the_shell_completes_verbs_and_their_commands(typed: str, word: str) -> None:
    words = typed.split()
    typed_words = [words[0], words[-1]] if "sta" in words else words
    done = printed(
        _RELIABLE_MQ_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(typed_words),
        COMP_CWORD=str(len(typed_words) - 1),
    )

    assert word in done.stdout.split()


def test_the_shell_completes_options() -> None:
    done = printed(
        _RELIABLE_MQ_COMPLETE="complete_bash",
        COMP_WORDS="reliable-mq stub list --ta",
        COMP_CWORD="3",
    )

    assert done.stdout.split() == ["--tag", "--table-prefix"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_each_shell_can_be_shown(shell: str) -> None:
    done = printed("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert "_RELIABLE_MQ_COMPLETE" in done.stdout


def at_a_terminal(*words: str, **environment: str) -> str:
    """Run a command whose output is a terminal; return what it prints."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "reliable_mq.cli.main", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is closed at its other side
        while part := os.read(ours, 4096):
            shown += part
    process.wait()
    os.close(ours)
    return shown.decode()


def test_colours_are_for_terminals_and_not_with_no_color() -> None:
    assert "\x1b[31merror:\x1b[0m " in at_a_terminal("run", NO_COLOR="")
    assert "\x1b" not in at_a_terminal("run", NO_COLOR="1")
    assert "\x1b" not in printed("run").stderr
