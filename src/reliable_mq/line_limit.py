"""The log of modules that peers can make write: its lines are escaped, cut and limited. Pure."""

import logging

from reliable_mq.plain_text import printable, printable_lines

LINES_A_MINUTE = 100
LINE_LENGTH_MAX = 2_000  # characters
TEXTS_MAX = 100  # that are counted apart
_SECONDS = 60.0
_FORMATTER = logging.Formatter()


class _Count:
    """How many lines of one text passed in this minute, and were left out since one passed."""

    __slots__ = ("began", "left_out", "passed")

    def __init__(self) -> None:
        self.began = 0.0
        self.passed = 0
        self.left_out = 0


class LineLimit(logging.Filter):
    """Lets so many lines of each text of a logger pass in a minute, none of which a peer can forge.

    A text is a line without its arguments: lines that peers cause do not hide another warning. Of
    texts that are made up the first `TEXTS_MAX` count apart, the others together. A line of level
    CRITICAL always passes.

    Characters that do not print come as escapes, a long line is cut.
    The first line after others were left out says how many they were.

    Args:
        lines_max: how many lines of a text pass in a minute.
    """

    def __init__(self, lines_max: int = LINES_A_MINUTE) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._counts: dict[str, _Count] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes, and make its text harmless."""
        count = self._count_of(record.msg)
        if not count.began <= record.created < count.began + _SECONDS:
            count.began, count.passed = record.created, 0
        if count.passed >= self._lines_max and record.levelno < logging.CRITICAL:
            count.left_out += 1
            return False
        count.passed += 1
        said = _said(record)
        text = printable(said, LINE_LENGTH_MAX)
        if count.left_out:
            text += f" ({count.left_out} lines like it were left out before it)"
            count.left_out = 0
        if text != said:  # a line that is fine keeps its arguments: tools group lines by them
            record.msg, record.args = text, None
        if record.exc_info and record.exc_info[0]:
            traceback = _FORMATTER.formatException(record.exc_info)
            record.exc_text = printable_lines(traceback, LINE_LENGTH_MAX)
        return True

    def _count_of(self, text: object) -> _Count:
        key = text if isinstance(text, str) else ""
        count = self._counts.get(key)
        if count is None:
            key = key if len(self._counts) < TEXTS_MAX else ""
            count = self._counts.setdefault(key, _Count())
        return count


def _said(record: logging.LogRecord) -> str:
    """Return the text of a line; one whose arguments do not fit it comes without them."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a line of the log must not end what wrote it
        said = f"{record.msg!r} has other arguments than it was given: {type(error).__name__}"
        record.msg, record.args = said, None
        return said


def limited_log(module: str) -> logging.Logger:
    """Return the logger of a module that peers can make write."""
    log = logging.getLogger(module)
    log.addFilter(LineLimit())
    return log
