"""A run that is stopped by Ctrl-C, systemd or Airflow ends in the same way as a failed run.

Its folder and Spark's folder are removed, and one line is printed. Rows that exist by then stay.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from reliable_mq.cli.saying import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SparkStopped(KeyboardInterrupt):
    """For this error, the bridge to Java closes its connection, and stops Spark by another one."""


class StopRequest:
    """The signal handler. It remembers the signal's number; 0: no signal came."""

    def __init__(self) -> None:
        self.number = 0
        #: whether to interrupt the main thread; otherwise the running code must check `number`
        self.is_interrupting = True

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:  # a second signal ends the process without the cleanup
            signal.signal(each, signal.SIG_DFL)
        logging.disable()  # the bridge to Java would log pages about the interruption
        self.number = number
        if self.is_interrupting:
            raise SparkStopped


@contextmanager
def asked_by_signals() -> Iterator[StopRequest]:
    """Install a `StopRequest` for SIGINT and SIGTERM while the block runs, in the main thread."""
    stop = StopRequest()
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block as an error would, in the main thread.

    Raises:
        typer.Exit: with 128 plus the number of the signal, as in shells.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    with asked_by_signals() as stop:
        try:
            yield
        except BaseException:  # interrupted code, or its cleanup, may fail with any error
            if not stop.number:
                raise
            name = signal.Signals(stop.number).name
            text = f"error: stopped by {name} before the run had ended; run it again"
            say(text, err=True)
            raise typer.Exit(128 + stop.number) from None
