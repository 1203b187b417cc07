"""Runs blocking work in a thread, so that the event loop is not blocked."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")

_AT_THE_END = "interpreter shutdown"  # Python's text then; a lack of threads has another text


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a thread of the loop, in the caller's context, and return its result.

    At the end of the interpreter, threads accept no more work. But the loop of a script may still
    have to send a committed message. Then the loop does the work itself, as no other task needs it.

    Raises:
        RuntimeError: when no thread can be started at another time. The loop never blocks then.
    """
    context = copy_context()
    try:
        working = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    except RuntimeError as error:  # before the work has begun
        if _AT_THE_END not in str(error):
            raise
        return work()
    return await working
