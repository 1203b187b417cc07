"""Log records as lines of JSON, for commands and for the logging configuration of any program.

LOGGING = {
    "version": 1,
    "formatters": {"json": {"()": "reliable_mq.telemetry.json_lines.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any, TypeGuard

from reliable_mq.telemetry.log_event import TAKEN

__all__ = ["JsonFormatter"]


def event_of(record: logging.LogRecord) -> str:
    """Return the name of a record's event; "": it is not one of ours."""
    return str(getattr(record, "event", ""))


def _is_float(value: object) -> TypeGuard[float]:
    return type(value) is float


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects, one in a line.

    Always there: `time` (UTC, ISO 8601), `level`, `logger`, `message`. A line of ours has `event`
    and the event's fields, rounded to millionths; another one has the fields of its `extra`. A
    traceback is `exception`, a stack is `stack`. A number that JSON does not have (NaN) is a text.
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
                line.setdefault(name, round(value, 6) if event and _is_float(value) else value)
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            text = json.dumps(line, default=str, allow_nan=False)
        except (ValueError, TypeError, RecursionError):  # NaN, keys that are no text, a loop
            text = json.dumps({name: str(value) for name, value in line.items()})
        return text.replace("\x7f", "\\u007f")
