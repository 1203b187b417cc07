"""`reliable-mq reconcile --follow`: increments until a signal stops the process."""

import logging
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from reliable_mq.cli.reconcile_stop import StopRequest, asked_by_signals
from reliable_mq.cli.saying import say, say_json

if TYPE_CHECKING:
    from reliable_mq.reconcile.runs.spark_run import RunOptions

log = logging.getLogger(__name__)


def follow_until_stopped(
    run: "RunOptions", every: timedelta, *, as_json: bool, after: Callable[[dict[str, Any]], None]
) -> None:
    """Run increments until SIGTERM or SIGINT, and print a line for each.

    The increment that is running then leaves nothing, even if it is the first and has read for
    hours.

    Args:
        run: the options of each increment.
        every: how often an increment begins.
        as_json: print each summary as a line of JSON.
        after: called with each summary before it is printed.

    Raises:
        Any error of the first increment; the next increment tries again after an error of a later
        one. The log tells it, and once a minute again while it lasts.
    """
    with asked_by_signals() as stop:
        _follow(run, every, stop, as_json=as_json, after=after)


def _follow(
    run: "RunOptions",
    every: timedelta,
    stop: StopRequest,
    *,
    as_json: bool,
    after: Callable[[dict[str, Any]], None],
) -> None:
    from reliable_mq.database.sql_faults import FaultLog, fault_line  # noqa: PLC0415 - seconds

    faults = FaultLog(log, "reconcile --follow")

    def done(summary: dict[str, Any]) -> None:
        stop.is_interrupting = False  # later increments run in a thread of Spark
        after(summary)
        faults.note_success()
        if as_json:
            say_json(summary)
        else:
            say(line_of(summary))

    def failed(error: Exception) -> None:
        faults.log_line(type(error).__name__, fault_line(error))

    try:
        from reliable_mq.reconcile.runs.spark_follow import follow  # noqa: PLC0415 - seconds

        follow(run, every, done=done, failed=failed, is_stopped=lambda: stop.number > 0)
    except BaseException:  # interrupted code, or its cleanup, may fail with any error
        if not stop.number:
            raise
    if stop.number and stop.is_interrupting:
        name = signal.Signals(stop.number).name
        say(f"stopped by {name} before the first increment had ended", err=True)


def line_of(summary: dict[str, Any]) -> str:
    """Return the result of an increment in a line."""
    found = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    return (
        f"{summary['as_of']} {summary['rows']} verdicts, {summary['findings_total']} findings,"
        f" {summary['increment']['carried']} messages open: {found or 'nothing new'}"
    )
