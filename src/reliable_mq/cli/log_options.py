"""`--log-format` and `--log-level` of the commands that run for long.

An application that has configured logging keeps its handlers, formats and levels. Then we only set
the level of our own loggers, and only if a person asks for one.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from reliable_mq.plain_text import printable, printable_lines
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel
from reliable_mq.telemetry.log_event import TAKEN

OURS = "reliable_mq"
TEXT: LogFormat = "text"
INFO: LogLevel = "info"
CHATTY = ("py4j",)
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
        show_default=TEXT,
        help=f"{when}Write log lines as text, or as one JSON object each.",
        **more,
    )


def level_option(when: str = "", **more: Any) -> Any:
    """Return the option `--log-level`; `when` says which uses of a command have it."""
    return typer.Option(
        "--log-level",
        envvar="RELIABLE_MQ_LOG_LEVEL",
        case_sensitive=False,
        show_default=INFO,
        help=f"{when}Write log lines of this level and above.",
        **more,
    )


Format = Annotated[LogFormat | None, format_option()]
Level = Annotated[LogLevel | None, level_option()]


def event_of(record: logging.LogRecord) -> str:
    """Return the name of a record's event; "": it is not one of ours."""
    return str(getattr(record, "event", ""))


class PlainFormatter(logging.Formatter):
    """Formats log records for a terminal: one line for each, then its traceback.

    A line of ours ends with the name of its event, which the reference explains.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record."""
        event = event_of(record)
        return printable(super().formatMessage(record) + (f" [{event}]" if event else ""))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the lines of a traceback."""
        return printable_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects, one in a line.

    Always there: `time` (UTC, ISO 8601), `level`, `logger`, `message`. A line of ours has `event`
    and the event's fields; another one has the fields of its `extra`. A traceback is `exception`,
    a stack is `stack`. A number that JSON does not have (NaN) is a text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if event := event_of(record):
            line["event"] = event
        for name, value in vars(record).items():
            if name not in TAKEN and not name.startswith("_"):
                line.setdefault(name, value)
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            text = json.dumps(line, default=str, allow_nan=False)
        except (ValueError, TypeError, RecursionError):  # NaN, keys that are no text, a loop
            text = json.dumps({name: str(value) for name, value in line.items()})
        return text.replace("\x7f", "\\u007f")


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


def write_log(shape: LogFormat | None = None, level: LogLevel | None = None) -> None:
    """Write the log to standard error, unless the application has configured its own.

    Args:
        shape: how a line looks; None: `TEXT`.
        level: the least level; None: `INFO`, or what the application has set.
    """
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
