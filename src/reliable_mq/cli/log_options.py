"""`--log-format` and `--log-level` of the commands that run for long.

An application that has configured logging keeps its handlers, formats and levels. Then we only set
the level of our own loggers, and only if a person asks for one.
"""

import logging
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from reliable_mq.plain_text import printable, printable_lines
from reliable_mq.telemetry.json_lines import JsonFormatter, event_of
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel

OURS = "reliable_mq"
TEXT: LogFormat = "text"
INFO: LogLevel = "info"
CHATTY = ("py4j", "alembic")
"""Loggers of libraries that write lines of level INFO about each of their calls."""
TELL_OUTAGES = (
    "reliable_mq.runtime.link",
    "reliable_mq.runtime.links",
    "reliable_mq.database.sql_faults",
)
"""The loggers of the connections, which tell when a peer is lost and when it is back."""


def format_option(when: str = "", **more: Any) -> Any:
    """Return the option `--log-format`; `when` says which uses of a command have it."""
    return typer.Option(
        "--log-format",
        envvar="RELIABLE_MQ_LOG_FORMAT",
        case_sensitive=False,
        show_default=False,
        help=f"{when}Write log lines as text, or as one JSON object each; default: {TEXT}.",
        **more,
    )


def level_option(when: str = "", **more: Any) -> Any:
    """Return the option `--log-level`; `when` says which uses of a command have it."""
    return typer.Option(
        "--log-level",
        envvar="RELIABLE_MQ_LOG_LEVEL",
        case_sensitive=False,
        show_default=False,
        help=f"{when}Write log lines of this level and above; default: {INFO}.",
        **more,
    )


Format = Annotated[LogFormat | None, format_option()]
Level = Annotated[LogLevel | None, level_option()]


class PlainFormatter(logging.Formatter):
    """Formats log records for a terminal: one line for each, then its traceback.

    The time is UTC, as in JSON. A line of ours ends with the name of its event, which the reference
    explains.
    """

    converter = time.gmtime  # type: ignore[assignment] # typeshed wants a method
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record."""
        event = event_of(record)
        return printable(super().formatMessage(record) + (f" [{event}]" if event else ""))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the lines of a traceback."""
        return printable_lines(super().formatException(ei))


def hush_outages() -> Callable[[], None]:
    """Let no line tell that a peer is lost; return what undoes this.

    A command that asks once ends with an error that says the same. `write_log` undoes it, too.
    """
    loggers = [logging.getLogger(name) for name in TELL_OUTAGES]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)

    def undo() -> None:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)

    return undo


_shape: list[LogFormat] = []
"""The shape of this process's lines: of the last command that has a log."""


def note_shape(shape: LogFormat | None) -> None:
    """Remember the shape of the log, so that an error before its first line has it, too."""
    _shape[:] = [] if shape is None else [shape]


def json_error(line: str) -> str | None:
    """Return the line of an error that ends a command, if its log is JSON; else None."""
    if _shape != ["json"]:
        return None
    return JsonFormatter().format(
        logging.LogRecord(OURS, logging.ERROR, "", 0, "%s", (line,), None)
    )


def write_log(shape: LogFormat | None = None, level: LogLevel | None = None) -> None:
    """Write the log to standard error, unless the application has configured its own.

    Args:
        shape: how a line looks; None: `TEXT`.
        level: the least level; None: `INFO`, or what the application has set.
    """
    note_shape(shape)
    for name in TELL_OUTAGES:
        logging.getLogger(name).setLevel(logging.NOTSET)
    ours = logging.getLogger(OURS)
    if logging.getLogger().handlers or ours.handlers:
        if level is not None:
            ours.setLevel(level.upper())
        return
    handler = logging.StreamHandler()
    if shape == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    chosen = (level or INFO).upper()
    logging.basicConfig(level=chosen, handlers=[handler])
    if chosen == "INFO":
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
