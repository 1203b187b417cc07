"""Runs a server on an event loop until the system asks this process to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_mq.runtime.heartbeat import BEAT_SECONDS, Heartbeat


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


async def beat_until(stop: asyncio.Event) -> None:
    """Wait until `stop` is set; meanwhile the event loop shows that it still works."""
    heart = Heartbeat()
    while not stop.is_set():
        heart.beat()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), BEAT_SECONDS)
    heart.end()
