"""Runs a server on an event loop until the system asks this process to stop."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Return an event that SIGTERM or SIGINT sets while the block runs.

    The handlers are removed at the end: a closed loop would leave handlers that ignore signals.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
