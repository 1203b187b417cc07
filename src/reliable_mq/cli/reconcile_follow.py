"""`reliable-mq reconcile --follow`: increments until the process is told to stop."""

import json
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_mq.reconcile.runs.spark_run import Options


def follow_until_stopped(
    run: "Options", every: timedelta, *, as_json: bool, after: Callable[[dict[str, Any]], None]
) -> None:
    """Do increments until SIGTERM or SIGINT, and print a line for each.

    Args:
        run: what each of them is asked for.
        every: how often.
        as_json: print each summary as a line of JSON.
        after: is given each summary before it is printed.

    Raises:
        Whatever the first increment fails of; what a later one fails of is a line on stderr.
    """
    from reliable_mq.reconcile.runs.spark_follow import follow  # noqa: PLC0415 - seconds

    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def done(summary: dict[str, Any]) -> None:
        after(summary)
        print(json.dumps(summary) if as_json else line_of(summary), flush=True)

    def failed(error: Exception) -> None:
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        print(f"error: {text}", file=sys.stderr, flush=True)

    follow(run, every, done=done, failed=failed, is_stopped=stopped.is_set)


def line_of(summary: dict[str, Any]) -> str:
    """Return what an increment came to, in a line."""
    found = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    return (
        f"{summary['as_of']} {summary['rows']} verdicts, {summary['findings_total']} findings,"
        f" {summary['increment']['carried']} messages open: {found or 'nothing new'}"
    )
