"""Background work that survives a failed run, or the cancellation of its caller."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from reliable_mq.errors import ReliableMQError
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import level_of

log = logging.getLogger(__name__)

T = TypeVar("T")


async def repeat(seconds: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Do `work` every `seconds` until cancelled. A failed run is logged, and the next one follows.

    Each pause is up to a fifth shorter, at random. So clients that started together do not send
    their requests together for ever.
    """
    while True:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 - it hides nothing
        await attempt(work, what)


async def attempt(work: Callable[[], Awaitable[object]], what: str) -> bool:
    """Do `work` and return whether it succeeded. Log a failure, and a bug with its traceback."""
    try:
        await work()
    except ReliableMQError as error:
        client_events.BACKGROUND_WORK_FAILED.log(log, level=level_of(error), work=what, error=error)
    except Exception:  # noqa: BLE001 - it is logged
        client_events.BACKGROUND_WORK_BROKEN.log(log, traceback_of=True, work=what)
    else:
        return True
    return False


class ShieldedTask:
    """Work that runs to its end even if its caller is cancelled. Others can wait for the end.

    A request in flight cannot be called back. Work that must come after it waits for its answer.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, or raise its exception."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Return when all work in progress has ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
