"""No command takes an empty word, whichever option or argument it is given to.

The commands and their parameters are read from the command line itself: a new option is checked
without a row here. Only the words are parsed: no command runs.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from reliable_mq.cli.main import VERBS, build_app

MAY_BE_EMPTY = {"--note"}
LEAST = 300
"""There are more parameters than this: the walk over the commands has found them."""


def _commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    for name, each in below.items():
        yield from _commands(each, f"{words} {name}")
    if not below:
        yield words, command


def _parameters() -> Iterator[tuple[str, Any, Any]]:
    """Return (words of the command, command, parameter) of each parameter that takes a value."""
    for verb in VERBS:
        root: Any = typer.main.get_command(build_app([verb]))
        for words, command in _commands(root.commands[verb], verb):
            for each in command.params:
                if not getattr(each, "is_flag", False) and not MAY_BE_EMPTY & set(each.opts):
                    yield words, command, each


def _line(command: Any, empty: Any) -> list[str]:
    """Return a command line with an empty word for a parameter, and with all that it needs."""
    words = list[str]()
    for each in command.params:
        given = "" if each is empty else "x"
        if each.param_type_name == "argument":
            is_needed = each.required or empty.param_type_name == "argument"
            words += [given] * max(each.nargs, 1) if is_needed else []
        elif each is empty:
            words += [each.opts[0], given]
    return words


def _said(command: Any, words: str, line: list[str]) -> str:
    """Return what the parsing raises for a command line; "": nothing. `reconcile` prints it."""
    try:
        command.make_context(words, line)
    except Exception as error:  # noqa: BLE001 - the errors of typer and ours
        return getattr(error, "format_message", error.__str__)()
    return ""


def test_every_parameter_of_every_command_refuses_an_empty_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The parsing refuses it, so a command asks, opens and writes nothing; it names the word."""
    wrong, seen = list[str](), 0
    for words, command, param in _parameters():
        seen += 1
        said = _said(command, words, _line(command, param)) + capfd.readouterr().err
        names = {*param.opts, (param.metavar or param.name).strip("[]"), param.name.upper()}
        if not any(each in said for each in names):
            wrong.append(f"{words} {param.opts[0]}: {said or 'taken'}")

    assert wrong == []
    assert seen > LEAST
