"""Notes which log events the tests make, over all their processes, and that their fields fit.

A run of all tests fails when an event of the catalogue did not appear.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

from reliable_mq.telemetry.log_event import LogEvent
from reliable_mq.telemetry.log_events import EVENTS

SEEN: set[str] = set()
_OUTPUT = "log events"


@contextmanager
def noting() -> Iterator[None]:
    """Note each event, also one of a level that nobody listens to."""
    write = LogEvent.log

    @wraps(write)
    def noted(event: LogEvent, logger: Any, /, **words: Any) -> None:
        fields = {key: words[key] for key in words.keys() - {"traceback_of", "level"}}
        if fields:
            assert event.text % fields
        SEEN.add(event.name)
        write(event, logger, **words)

    LogEvent.log = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        LogEvent.log = write  # type: ignore[method-assign]


def report(config: pytest.Config) -> None:
    """Send what a worker of pytest-xdist has noted to the process that started it."""
    if hasattr(config, "workeroutput"):
        config.workeroutput[_OUTPUT] = sorted(SEEN)


def take(node: Any) -> None:
    """Add what a worker has sent."""
    SEEN.update(getattr(node, "workeroutput", {}).get(_OUTPUT, ()))


def missing() -> list[str]:
    """Return the events that did not appear."""
    return sorted(EVENTS.keys() - SEEN)
