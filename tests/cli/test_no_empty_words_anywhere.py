"""No command takes an empty word, or bytes that are not UTF-8, whatever they are given to.

The commands and their parameters are read from the command line itself: a new option is checked
without a row here. Only the words are parsed: no command runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reliable_mq.cli.main import BAD_USAGE, VERBS, build_app, run

MAY_BE_EMPTY = {"--note"}
BYTES = "caf\udce9"
"""A word as Python has it of a terminal with another character set."""
OF_FILES = {"--out", "--also", "--before", "--prometheus", "--store", "--slave-store"}
LEAST = 300
"""There are more parameters than this: the walk over the commands has found them."""


def _commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    for name, each in below.items():
        yield from _commands(each, f"{words} {name}")
    if not below:
        yield words, command


def _parameters(left_out: set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Return (words of the command, command, parameter) of each parameter that takes a value."""
    for verb in VERBS:
        root: Any = typer.main.get_command(build_app([verb]))
        for words, command in _commands(root.commands[verb], verb):
            for each in command.params:
                if not getattr(each, "is_flag", False) and not left_out & set(each.opts):
                    yield words, command, each


def _line(command: Any, odd: Any, word: str = "") -> list[str]:
    """Return a command line with a word for a parameter, and with all that it needs."""
    words = list[str]()
    for each in command.params:
        given = word if each is odd else "x"
        if each.param_type_name == "argument":
            is_needed = each.required or odd.param_type_name == "argument"
            words += [given] * max(each.nargs, 1) if is_needed else []
        elif each is odd:
            words += [each.opts[0], given]
    return words


def _said(command: Any, words: str, line: list[str]) -> str:
    """Return what the parsing raises for a command line; "": nothing. `reconcile` prints it."""
    try:
        command.make_context(words, line)
    except Exception as error:  # noqa: BLE001 - the errors of typer and ours
        return getattr(error, "format_message", error.__str__)()
    return ""


def _names(param: Any, said: str) -> bool:
    """Return whether a line names a parameter."""
    names = {*param.opts, (param.metavar or param.name).strip("[]"), param.name.upper()}
    return any(each in said for each in names)


def test_every_parameter_of_every_command_refuses_an_empty_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The parsing refuses it, so a command asks, opens and writes nothing; it names the word."""
    wrong, seen = list[str](), 0
    for words, command, param in _parameters(MAY_BE_EMPTY):
        seen += 1
        said = _said(command, words, _line(command, param)) + capfd.readouterr().err
        if not _names(param, said):
            wrong.append(f"{words} {param.opts[0]}: {said or 'taken'}")

    assert wrong == []
    assert seen > LEAST


def test_every_parameter_but_names_of_files_refuses_bytes_that_are_not_utf8(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A driver of PostgreSQL would raise at such a word, behind the checks of the command."""
    wrong, seen = list[str](), 0
    for words, command, param in _parameters(OF_FILES):
        if getattr(getattr(param, "type_descriptor", None), "annotation", None) is Path:
            continue
        seen += 1
        said = _said(command, words, _line(command, param, BYTES)) + capfd.readouterr().err
        if not (_names(param, said) and "bytes that are not UTF-8" in said):
            wrong.append(f"{words} {param.opts[0]}: {said or 'taken'}")

    assert wrong == []
    assert seen > LEAST


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("stub", "show", BYTES), "MESSAGE"),
        (("stub", "void", "A" * 32, BYTES), "MESSAGE_ID…"),
        (("stub", "skip", "A" * 32, "--group", "billing", "--note", BYTES), "--note"),
        (("dlq", "list", "--reason-holds", BYTES), "--reason-holds"),
    ],
)
def test_bytes_that_are_not_utf8_are_told_in_a_line_before_a_database_is_asked(
    words: tuple[str, ...], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run((*words, "--db", "postgresql+psycopg://127.0.0.1:1/shop"))
    assert end.value.code == BAD_USAGE
    said = f"error: {name} has bytes that are not UTF-8: write it in UTF-8\n"
    assert capfd.readouterr() == ("", said)


def test_names_of_files_may_have_any_bytes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(("namesrv", "--config", str(tmp_path / BYTES)))
    assert "No such file or directory" in capfd.readouterr().err
