"""How commands print: text from other programs reaches the terminal only as printable text."""

import json
import os
from datetime import UTC, datetime, timedelta

import typer

from reliable_mq.plain_text import printable, printable_lines


def say(text: object = "", *, err: bool = False) -> None:
    """Print one line; unprintable characters become escapes, including line breaks."""
    typer.echo(printable(str(text)), err=err)


def say_raw(text: str, *, err: bool = False) -> None:
    """Print a line whose unprintable characters were replaced; it may have colours of ours."""
    typer.echo(text, err=err)


def say_lines(text: str) -> None:
    """Print some lines; unprintable characters become escapes."""
    typer.echo(printable_lines(text))


def say_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as JSON. A time is ISO 8601 with its zone, any other type is a text.

    All characters beyond ASCII become JSON escapes, also DEL.
    """
    text = json.dumps(value, default=_json_value, indent=indent)
    typer.echo(text.replace("\x7f", "\\u007f"))


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def coloured(text: str, colour: str, *, err: bool = False) -> str:
    """Return a text in a colour, if its stream is a terminal and `NO_COLOR` is not set.

    Args:
        text: the text; unprintable characters must have been replaced.
        colour: a name of typer's, such as "red".
        err: it is printed to standard error.
    """
    stream = typer.get_text_stream("stderr" if err else "stdout")
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return typer.style(text, fg=colour)


def say_trouble(kind: str, text: str) -> None:
    """Print "error: …" or "warning: …" to standard error, in one line."""
    colour = "red" if kind == "error" else "yellow"
    typer.echo(f"{coloured(f'{kind}:', colour, err=True)} {printable(text)}", err=True)
