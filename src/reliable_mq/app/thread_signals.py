"""Runs an application until the system asks this process to stop."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.runtime.heartbeat import Heartbeat
from reliable_mq.runtime.stopped import StopSignal

LOOK_SECONDS = 1.0


class WorkerDied(InvariantBroken):
    """A process that should consume cannot do so any more; start it again."""


@contextmanager
def stop_on_signal(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Return an event that one of these signals sets while the block runs.

    A second signal has its usual effect.

    Args:
        *numbers: the signals. None given: SIGTERM and SIGINT.

    Raises:
        UsageError: this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("run() needs the main thread; in other threads call start() and close()")
    stopped = threading.Event()
    wanted = numbers or (signal.SIGTERM, signal.SIGINT)
    usual = {number: signal.getsignal(number) for number in wanted}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def stop(_number: int, _frame: FrameType | None) -> None:
        restore()
        stopped.set()

    for number in usual:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()


def run_until_signal(
    start: Callable[[], None],
    close: Callable[[], None],
    is_alive: Callable[[], bool],
    answers: Callable[[], bool] = lambda: True,
    wait: Callable[[StopSignal], object] = lambda _stopped: None,
) -> None:
    """Wait for what the start needs, start, wait for SIGTERM or SIGINT, close.

    Meanwhile a `Heartbeat` beats as long as `answers` returns True.

    Raises:
        UsageError: an event loop runs in this thread, and would stand still until a signal.
        WorkerDied: `is_alive` returned False before a signal; raised after closing.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # no loop runs here
    else:
        raise UsageError(
            "run() would block this event loop: call start() instead, and close() at the end"
        )
    heart = Heartbeat()
    with stop_on_signal() as stopped:
        try:
            wait(stopped)
            if stopped.is_set():
                return
            start()
            heart.beat()
            while not stopped.wait(LOOK_SECONDS):
                if not is_alive():
                    raise WorkerDied("the event loop has ended; the log says why")
                if answers():
                    heart.beat()
        finally:
            heart.end()
            close()
