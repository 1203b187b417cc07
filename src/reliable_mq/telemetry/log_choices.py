"""What a person may choose about log lines, in a setting and on a command line. Values only."""

from typing import Literal

LogFormat = Literal["text", "json"]
"""How a log line looks."""
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
"""The least level that is written."""
