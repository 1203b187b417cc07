"""Ends a broker process after an unexpected exception.

It receives an exception of a loop callback, a task or a thread. An event loop only logs such an
exception. The process would stay up with one part dead: for example, it would acknowledge nothing,
or nothing would expire. A supervisor restarts only a process that has ended. After the restart,
recovery restores a correct state.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

OnBroken = Callable[[Exception], NoReturn]
"""Receives the cause. It must not return."""


def die(cause: Exception) -> NoReturn:
    """Log the cause and end the process with code 1."""
    broker_events.BROKER_BROKEN.log(log, traceback_of=cause, error=cause)
    logging.shutdown()
    os._exit(1)


def watched(work: Coroutine[Any, Any, None], on_broken: OnBroken) -> asyncio.Task[None]:
    """Start a task. If it fails with an exception, pass that to `on_broken`."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            on_broken(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
