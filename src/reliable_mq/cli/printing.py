"""Shared by the verbs for people: how rows and values are printed, and how a question is asked.

Imports no database library: a command that only asks a cluster must not wait for one. Rich, which
lays out tables, is imported for a table.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reliable_mq.cli.saying import say, say_json
from reliable_mq.errors import UsageError
from reliable_mq.plain_text import printable
from reliable_mq.reconcile.moments import parse_moment

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_CELL_LENGTH_MAX = 1_000  # characters of a value in a table
_LINE_LENGTH_MAX = 20_000
_FOLDED_WIDTH_MIN = 13  # a time needs two lines then, not three
_EPOCH = datetime.fromtimestamp(0, UTC)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal, nothing is asked.")
]


def moment_of(text: str, option: str) -> datetime | None:
    """Return the time of an option; None: the option was not given."""
    return parse_moment(text, option, datetime.now(UTC)) if text else None


def window_of(since: str, until: str) -> tuple[datetime | None, datetime | None]:
    """Return the times of `--since` and `--until`; None: not given.

    Raises:
        ConfigurationError: a time cannot be read.
        UsageError: nothing can lie between them.
    """
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    if begin is not None and end is not None and begin >= end:
        raise UsageError(
            f"nothing is between --since {since} and --until {until}: the first is the later one"
        )
    return begin, end


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    none: str = "nothing was found",
) -> None:
    """Print these columns of rows as a table, or whole rows as JSON.

    In a terminal that is too narrow for the table, each row is a block of lines.

    Args:
        rows: the rows.
        columns: the columns of the table.
        as_json: print JSON.
        none: what standard error says instead of a table without rows.
    """
    if as_json:
        say_json(rows)
        return
    if not rows:
        say(none, err=True)
        return
    cells = [[text_of(row[name], _CELL_LENGTH_MAX) for name in columns] for row in rows]
    # Without a terminal, a row is a line, whatever its length: other programs read it.
    console = plain_console(width=None if sys.stdout.isatty() else _LINE_LENGTH_MAX)
    if (table := _table_within(console.width, columns, cells)) is None:
        print("\n\n".join(_block(columns, row) for row in cells))
        return
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _table_within(
    width: int, columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> "RichTable | None":
    """Return a table whose ids and keys stay on one line; None: they need more than this width.

    A person copies ids and keys into the next command. Other values are folded.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - for tables only
    from rich.table import Table as RichTable  # noqa: PLC0415 - for tables only

    table = RichTable(box=None)
    for place, name in enumerate(columns):
        heading = _heading(name)
        longest = max(cell_len(text) for text in (heading, *(row[place] for row in cells)))
        is_copied = name.endswith(("id", "key"))
        least = longest if is_copied else min(longest, _FOLDED_WIDTH_MIN)
        table.add_column(heading, overflow="fold", no_wrap=is_copied, min_width=least)
    if sum((column.min_width or 0) + 2 for column in table.columns) > width:
        return None
    for row in cells:
        table.add_row(*row)
    return table


def _block(columns: Sequence[str], row: Sequence[str]) -> str:
    """Return a row as lines, each with the heading and the value of a column."""
    length = max(len(_heading(name)) for name in columns)
    lines = (f"{_heading(name):{length}}  {text}" for name, text in zip(columns, row, strict=True))
    return "\n".join(line.rstrip() for line in lines)


def _heading(name: str) -> str:
    return name.replace("_", " ")


def plain_console(width: int | None = None) -> "Console":
    """Return a console that prints text unchanged: "[/a]" in a note is not rich's markup."""
    from rich.console import Console  # noqa: PLC0415 - the pages of the console take ages only

    return Console(width=width, markup=False, emoji=False)


def print_names(names: Sequence[str], *, as_json: bool, none: str = "nothing was found") -> None:
    """Print names, one a line, or as a JSON list; standard error says that there are none."""
    if as_json:
        say_json(names)
    elif not names:
        say(none, err=True)
    else:
        for name in names:
            say(name)


def age_of(time: datetime | None, now: datetime) -> str:
    """Return how long ago a time was, such as "5 m" or "3 d"; "" for no time.

    Both times have a zone. A time that is not past is "0 s" ago.
    """
    if time is None:
        return ""
    seconds = max(0, int((now - time).total_seconds()))
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


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
