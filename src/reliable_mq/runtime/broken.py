"""What ends a broker that can keep its promises no longer.

Receives an exception that nobody expected, out of a callback of the loop, a task or a thread. Event
loops log such a thing and go on, and the process would listen on with a part of it dead: nothing is
acknowledged any more, or nothing expires, and nobody starts it anew. Recovery knows what is there.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from reliable_mq.line_limit import limited_log

log = limited_log(__name__)

OnBroken = Callable[[Exception], NoReturn]
"""Takes the cause; it must not return."""


def die(cause: Exception) -> NoReturn:
    """End the process with code 1, the cause in the log."""
    log.critical("the broker cannot go on, it stops: %s", cause, exc_info=cause)
    logging.shutdown()
    os._exit(1)


def watched(work: Coroutine[Any, Any, None], on_broken: OnBroken) -> asyncio.Task[None]:
    """Begin a task whose exception, when it ends with one, goes to `on_broken`."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            on_broken(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
