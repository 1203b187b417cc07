"""`reliable-mq reconcile --follow`: increments until the process is told to stop."""

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from reliable_mq.cli.reconcile_stop import StopRequest, asked_by_signals
from reliable_mq.cli.saying import say, say_json

if TYPE_CHECKING:
    from reliable_mq.reconcile.runs.spark_run import RunOptions


def follow_until_stopped(
    run: "RunOptions", every: timedelta, *, as_json: bool, after: Callable[[dict[str, Any]], None]
) -> None:
    """Do increments until SIGTERM or SIGINT, and print a line for each.

    The one under way then leaves nothing, the first one, which may read for hours, included.

    Args:
        run: what each of them is asked for.
        every: how often.
        as_json: print each summary as a line of JSON.
        after: is given each summary before it is printed.

    Raises:
        Whatever the first increment fails of; what a later one fails of is a line on stderr.
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
    def done(summary: dict[str, Any]) -> None:
        stop.is_interrupting = False  # the next ones run in a thread of Spark's
        after(summary)
        if as_json:
            say_json(summary)
        else:
            say(line_of(summary))

    def failed(error: Exception) -> None:
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        say(f"error: {text}", err=True)

    try:
        from reliable_mq.reconcile.runs.spark_follow import follow  # noqa: PLC0415 - seconds

        follow(run, every, done=done, failed=failed, is_stopped=lambda: stop.number > 0)
    except BaseException:  # what was interrupted, or cleans up behind it, may fail in its own way
        if not stop.number:
            raise
    if stop.number and stop.is_interrupting:
        name = signal.Signals(stop.number).name
        say(f"stopped by {name} before the first increment had ended", err=True)


def line_of(summary: dict[str, Any]) -> str:
    """Return what an increment came to, in a line."""
    found = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    return (
        f"{summary['as_of']} {summary['rows']} verdicts, {summary['findings_total']} findings,"
        f" {summary['increment']['carried']} messages open: {found or 'nothing new'}"
    )
