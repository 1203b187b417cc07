"""Work that would hold up an event loop, done in a thread beside it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Return what `work` returns; it runs in a thread of the loop.

    At the end of the interpreter no thread takes work any more, but the loop of a script that has
    committed still sends. Then the loop does the work itself: nobody else needs it at that time.
    """
    try:
        working = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:  # of concurrent.futures, before the work has begun
        return work()
    return await working
