"""Work that would hold up an event loop, done in a thread beside it."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")

_AT_THE_END = "interpreter shutdown"  # Python says so then, and says a lack of threads otherwise


async def in_thread(work: Callable[[], Result]) -> Result:
    """Return what `work` returns; it runs in a thread of the loop, in the caller's context.

    At the end of the interpreter no thread takes work any more, but the loop of a script that has
    committed still sends. Then the loop does the work itself: nobody else needs it at that time.

    Raises:
        RuntimeError: when no thread can be had otherwise. The loop does no work that blocks.
    """
    context = copy_context()
    try:
        working = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    except RuntimeError as error:  # before the work has begun
        if _AT_THE_END not in str(error):
            raise
        return work()
    return await working
