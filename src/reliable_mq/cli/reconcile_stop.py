"""A run that is told to stop, by Ctrl-C, systemd or Airflow, ends as one that fails does.

Its folder and Spark's own go, and one line says so; whatever has a row by then stays.
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
    """The bridge to Java closes its connection for this one, and uses another to stop Spark."""


class StopRequest:
    """What a signal does, and which one it was; 0: none came."""

    def __init__(self) -> None:
        self.number = 0
        #: whether the main thread is interrupted; else whoever works looks at `number`
        self.is_interrupting = True

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:  # whoever cannot wait for the end of the cleaning says it again
            signal.signal(each, signal.SIG_DFL)
        logging.disable()  # the bridge to Java logs pages of what it was interrupted in
        self.number = number
        if self.is_interrupting:
            raise SparkStopped


@contextmanager
def asked_by_signals() -> Iterator[StopRequest]:
    """Give what SIGINT and SIGTERM do for as long as the block runs, in the main thread."""
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
    """Let SIGINT and SIGTERM end what is done here, in the main thread, as an error would.

    Raises:
        typer.Exit: with 128 and the number of the signal, as shells tell it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of signals
        return
    with asked_by_signals() as stop:
        try:
            yield
        except BaseException:  # what was interrupted, or cleans up behind it, may fail in its way
            if not stop.number:
                raise
            name = signal.Signals(stop.number).name
            told = f"error: stopped by {name} before the run had ended; run it again"
            say(told, err=True)
            raise typer.Exit(128 + stop.number) from None
