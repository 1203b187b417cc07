"""The log of modules that peers can make write: its lines are escaped, cut and limited. Pure."""

import logging

from reliable_mq.plain_text import printable, printable_lines

LINES_A_MINUTE = 100
LINE_LENGTH_MAX = 2_000  # characters
_SECONDS = 60.0
_FORMATTER = logging.Formatter()


class LineLimit(logging.Filter):
    """Lets so many lines of a logger pass in each minute, none of which a peer can forge.

    Characters that do not print come as escapes, a long line is cut.
    The first line after others were left out says how many they were.

    Args:
        lines_max: how many lines pass in a minute.
    """

    def __init__(self, lines_max: int = LINES_A_MINUTE) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._began = 0.0
        self._passed = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes, and make its text harmless."""
        if not self._began <= record.created < self._began + _SECONDS:
            self._began, self._passed = record.created, 0
        if self._passed >= self._lines_max:
            self._left_out += 1
            return False
        self._passed += 1
        said = record.getMessage()
        text = printable(said, LINE_LENGTH_MAX)
        if self._left_out:
            text += f" ({self._left_out} lines of this module were left out before it)"
            self._left_out = 0
        if text != said:  # a line that is fine keeps its arguments: tools group lines by them
            record.msg, record.args = text, None
        if record.exc_info and record.exc_info[0]:
            traceback = _FORMATTER.formatException(record.exc_info)
            record.exc_text = printable_lines(traceback, LINE_LENGTH_MAX)
        return True


def limited_log(module: str) -> logging.Logger:
    """Return the logger of a module that peers can make write."""
    log = logging.getLogger(module)
    log.addFilter(LineLimit())
    return log
