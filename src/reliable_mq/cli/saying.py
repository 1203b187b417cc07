"""How commands print: nothing that a stranger wrote reaches the terminal as it is."""

import json
import logging
from typing import Any

import typer

from reliable_mq.plain_text import printable, printable_lines


def say(text: object = "", *, err: bool = False) -> None:
    """Print one line; what does not print comes as escapes, line breaks too."""
    typer.echo(printable(str(text)), err=err)


def say_lines(text: str) -> None:
    """Print some lines; what does not print comes as escapes."""
    typer.echo(printable_lines(text))


def say_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as JSON; what JSON has no form for, as text.

    All characters beyond ASCII come as JSON's own escapes, DEL too.
    """
    text = json.dumps(value, default=str, indent=indent)
    typer.echo(text.replace("\x7f", "\\u007f"))


class PlainFormatter(logging.Formatter):
    """Writes a log for a terminal: one line for a record, with the lines of its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the lines of a traceback."""
        return printable_lines(super().formatException(ei))


def log_plainly() -> None:
    """Write the log to standard error, from INFO on.

    Does nothing where the application has configured its log already.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
