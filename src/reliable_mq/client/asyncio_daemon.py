"""Work that is done again and again, whatever becomes of a single time."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from reliable_mq.errors import ReliableMQError

log = logging.getLogger(__name__)


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
