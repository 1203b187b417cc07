"""A log for modules whose lines peers can cause: lines are escaped, cut and limited. Pure."""

import logging
from collections.abc import Callable

from reliable_mq.plain_text import printable, printable_lines

LINES_A_MINUTE = 100
LINE_LENGTH_MAX = 2_000  # characters
TEXTS_MAX = 100  # texts that are counted separately
_SECONDS = 60.0
_FORMATTER = logging.Formatter()


class _Count:
    """How many lines of one text passed in this minute, and how many were left out since."""

    __slots__ = ("began", "left_out", "passed")

    def __init__(self) -> None:
        self.began = 0.0
        self.passed = 0
        self.left_out = 0


class LineLimit(logging.Filter):
    """Limits the lines of each text per minute. A peer cannot forge a line.

    A text is a line without its arguments, so frequent lines do not hide another warning. The first
    `TEXTS_MAX` texts are counted separately, all others together. Lines of level CRITICAL always
    pass.

    Unprintable characters become escapes, and a long line is cut. After lines were left out, the
    next line says how many.

    Args:
        lines_max: how many lines of a text pass in a minute.
        apart: gives what is counted separately. Default: the text. Beyond `TEXTS_MAX` of them,
            `LINES_A_MINUTE` lines pass in a minute.
    """

    def __init__(
        self,
        lines_max: int = LINES_A_MINUTE,
        apart: Callable[[logging.LogRecord], str] | None = None,
    ) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._apart = apart
        self._counts: dict[str, _Count] = {}

    def renewed(self) -> "LineLimit":
        """Return a limit like this one that has counted nothing."""
        return LineLimit(self._lines_max, self._apart)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes; make its text harmless."""
        count = self._count_of(record)
        is_shared = self._apart is not None and count is self._counts.get("")
        lines_max = LINES_A_MINUTE if is_shared else self._lines_max
        if not count.began <= record.created < count.began + _SECONDS:
            count.began, count.passed = record.created, 0
        if count.passed >= lines_max and record.levelno < logging.CRITICAL:
            count.left_out += 1
            return False
        count.passed += 1
        said = _said(record)
        text = printable(said, LINE_LENGTH_MAX)
        if count.left_out:
            text += f" ({count.left_out} lines like it were left out before it)"
            count.left_out = 0
        if text != said:  # a harmless line keeps its arguments: tools group lines by them
            record.msg, record.args = text, None
        if record.exc_info and record.exc_info[0]:
            traceback = _FORMATTER.formatException(record.exc_info)
            record.exc_text = printable_lines(traceback, LINE_LENGTH_MAX)
        return True

    def _count_of(self, record: logging.LogRecord) -> _Count:
        key = record.msg if self._apart is None else self._apart(record)
        if not isinstance(key, str):
            key = ""
        count = self._counts.get(key)
        if count is None:
            if self._apart is not None and len(self._counts) >= TEXTS_MAX:
                self._forget(record.created)
            key = key if len(self._counts) < TEXTS_MAX else ""
            count = self._counts.setdefault(key, _Count())
        return count

    def _forget(self, now: float) -> None:
        """Forget counts whose minute is over: peers choose what is counted apart."""
        self._counts = {
            key: each
            for key, each in self._counts.items()
            if each.began <= now < each.began + _SECONDS
        }


def _said(record: logging.LogRecord) -> str:
    """Return the text of a line; if its arguments do not fit, return it without them."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a log line must not stop the code that writes it
        said = f"{record.msg!r} has other arguments than it was given: {type(error).__name__}"
        record.msg, record.args = said, None
        return said


def limited_log(module: str) -> logging.Logger:
    """Return the logger of a module whose lines peers can cause."""
    log = logging.getLogger(module)
    log.addFilter(LineLimit())
    return log


def refusal_log(module: str) -> logging.Logger:
    """Return the logger of a module that logs refusals: each address and reason once a minute.

    A worker with a wrong secret asks again several times a second, with each kind of request.
    """
    log = logging.getLogger(module)
    log.addFilter(LineLimit(1, _refusal))
    return log


def _refusal(record: logging.LogRecord) -> str:
    facts = record.args if isinstance(record.args, dict) else {}
    host = str(facts.get("client", "")).rpartition(":")[0]
    return f"{host} {facts.get('reason', '')}"
