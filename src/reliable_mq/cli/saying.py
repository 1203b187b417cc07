"""How commands print: text from other programs reaches the terminal only as printable text."""

import json

import typer

from reliable_mq.plain_text import printable, printable_lines


def say(text: object = "", *, err: bool = False) -> None:
    """Print one line; unprintable characters become escapes, including line breaks."""
    typer.echo(printable(str(text)), err=err)


def say_lines(text: str) -> None:
    """Print some lines; unprintable characters become escapes."""
    typer.echo(printable_lines(text))


def say_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as JSON; a type that JSON does not have is printed as text.

    All characters beyond ASCII become JSON escapes, also DEL.
    """
    text = json.dumps(value, default=str, indent=indent)
    typer.echo(text.replace("\x7f", "\\u007f"))
