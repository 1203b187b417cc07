"""Shared by the verbs for people: how rows and values are printed, and how a question is asked.

Imports no database library: a command that only asks a cluster must not wait for one.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from reliable_mq.cli.saying import say, say_json
from reliable_mq.plain_text import printable
from reliable_mq.reconcile.moments import parse_moment

_CELL_LENGTH_MAX = 1_000  # characters of a value in a table
_EPOCH = datetime.fromtimestamp(0, UTC)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def moment_of(text: str, option: str) -> datetime | None:
    """Return the time of an option; None: the option was not given."""
    return parse_moment(text, option, datetime.now(UTC)) if text else None


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool = False
) -> None:
    """Print these columns of rows as a table, or whole rows as JSON."""
    if as_json:
        say_json(rows)
        return
    table = RichTable(box=None)
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(text_of(row[name], _CELL_LENGTH_MAX) for name in columns))
    plain_console(width=None if sys.stdout.isatty() else 200).print(table)


def plain_console(width: int | None = None) -> Console:
    """Return a console that prints text unchanged: "[/a]" in a note is not rich's markup."""
    return Console(width=width, markup=False, emoji=False)


def print_names(names: Sequence[str], *, as_json: bool) -> None:
    """Print names, one a line, or as a JSON list."""
    if as_json:
        say_json(names)
    else:
        for name in names:
            say(name)


def time_of(milliseconds: int | None) -> datetime | None:
    """Return the time of milliseconds since the epoch; None for None."""
    return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)


def text_of(value: object, length_max: int | None = None) -> str:
    """Return a value in readable form: nothing for None, a time to the second.

    Unprintable characters become escapes: another program may have written them.
    """
    if hasattr(value, "isoformat"):
        return str(value.isoformat(timespec="seconds"))
    return "" if value is None else printable(str(value), length_max)


def agreed(question: str, *, yes: bool) -> bool:
    """Ask before a large change, if a person at a terminal can answer."""
    return yes or not sys.stdin.isatty() or typer.confirm(question)
