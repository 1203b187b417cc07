"""One log event: its name, level, text and fields. The only place that writes log lines.

A line is the text with the fields in it. The same fields are attributes of the log record
(`extra`), beside `event`, the name. So a handler for structured logs needs no parsing. The
application's own logging decides what is shown.
"""

import logging
import re
import sys
from types import TracebackType
from typing import NamedTuple

from reliable_mq.error_texts import text_of
from reliable_mq.telemetry.written_errors import written_error

_PLACE = re.compile(r"%(?:%|\((\w+)\))")
#: attributes of every log record, which a field must not replace
TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}

ExcInfo = BaseException | bool | tuple[type[BaseException], BaseException, TracebackType] | None


class LogEvent(NamedTuple):
    """One kind of log line.

    Attributes:
        name: the name, as in the field `event` of a record.
        level: the level of `logging`.
        text: the line, with a place for each field: `%(group)s`.
        more: fields that are not in the text.
        since: the release that had it first.
    """

    name: str
    level: int
    text: str
    more: tuple[str, ...] = ()
    since: str = "0.1.0"

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields: those in the text, in order, then the others."""
        found = (place[1] for place in _PLACE.finditer(self.text) if place[1])
        return tuple(dict.fromkeys((*found, *self.more)))

    @property
    def level_name(self) -> str:
        """The name of the level, such as WARNING."""
        return logging.getLevelName(self.level)

    def log(
        self,
        logger: logging.Logger,
        /,
        *,
        traceback_of: ExcInfo = None,
        level: int | None = None,
        **fields: object,
    ) -> None:
        """Write a line, if the logger writes lines of this level.

        Args:
            logger: the logger of the calling module.
            traceback_of: an error whose traceback is written, too; True: the current one.
            level: another level than the declared one.
            **fields: the value of each field.
        """
        shown = self.level if level is None else level
        if not logger.isEnabledFor(shown):
            return
        told = {name: _told(value) for name, value in fields.items()}
        logger.log(
            shown,
            self.text,
            *((told,) if told else ()),
            exc_info=_written(traceback_of),
            extra={**told, "event": self.name},
            stacklevel=2,
        )


def _written(given: ExcInfo) -> ExcInfo:
    error = sys.exc_info()[1] if given is True else given
    return written_error(error) if isinstance(error, BaseException) else given


def _told(value: object) -> object:
    """Return an error as text: a record may be pickled, and an error's own text may raise.

    A text has one line: that of a peer may have several.
    """
    if isinstance(value, str):
        return _one_line(value)
    if not isinstance(value, BaseException):
        return value
    try:
        return _one_line(text_of(value)) or type(value).__name__
    except Exception:  # noqa: BLE001 - the error's own __str__ may raise anything
        return f"{type(value).__name__}, whose text cannot be read"


def _one_line(text: str) -> str:
    return " ".join(text.split()) if "\n" in text else text


def debug(name: str, text: str, *more: str) -> LogEvent:
    """Declare an event of level DEBUG."""
    return LogEvent(name, logging.DEBUG, text, more)


def info(name: str, text: str, *more: str) -> LogEvent:
    """Declare an event of level INFO: normal, and rare."""
    return LogEvent(name, logging.INFO, text, more)


def warning(name: str, text: str, *more: str) -> LogEvent:
    """Declare an event of level WARNING: something is not as it should be, and is handled."""
    return LogEvent(name, logging.WARNING, text, more)


def error(name: str, text: str, *more: str) -> LogEvent:
    """Declare an event of level ERROR: somebody has to act, or it is a bug."""
    return LogEvent(name, logging.ERROR, text, more)


def critical(name: str, text: str, *more: str) -> LogEvent:
    """Declare an event of level CRITICAL: the process cannot do its work."""
    return LogEvent(name, logging.CRITICAL, text, more)
