"""Work that goes on whatever becomes of a single time, or of who waits for it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from reliable_mq.errors import ReliableMQError

log = logging.getLogger(__name__)

T = TypeVar("T")


async def repeat(seconds: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Do `work` every so many `seconds`, until cancelled. What fails is logged and done again.

    Each pause is up to a fifth shorter, by chance: clients that started together do not ask
    together for ever.
    """
    while True:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 - it hides nothing
        await attempt(work, what)


async def attempt(work: Callable[[], Awaitable[object]], what: str) -> bool:
    """Do `work` and return whether it succeeded; a failure is logged, a bug with its traceback."""
    try:
        await work()
    except ReliableMQError as error:
        log.warning("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed", what)
    else:
        return True
    return False


class ShieldedTask:
    """What goes on to its end although who began it is cancelled, so that others can wait for it.

    A request that has left cannot be called back: what must come behind it waits for its answer.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def see(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; what it raises is raised here."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Return when everything has ended that is under way now."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
