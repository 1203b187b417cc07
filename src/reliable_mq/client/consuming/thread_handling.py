"""Handlers that are plain functions: each call runs in a thread of a pool.

It receives deliveries on an event loop, and returns the function's result. `sys.exit` in a function
is a failure like any other exception, and does not reach the loop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from reliable_mq.client.consuming.subscription import Answer, Handler
from reliable_mq.message import ReceivedMessage
from reliable_mq.runtime.daemon_threads import DaemonThreads

A = TypeVar("A")
R = TypeVar("R")

SyncHandler = Callable[[Sequence[ReceivedMessage]], Answer]
"""Runs in a thread of the consumer. Same arguments and result as a `Handler`."""

AnyHandler = Handler | SyncHandler
"""A coroutine function runs on the event loop, any other function in threads."""


class ExitRaised(Exception):
    """A function raised an exception that would end the thread or the program; see the text."""


class HandlerStillRunning(asyncio.CancelledError):
    """The waiting task was cancelled, but a thread in the handler cannot be stopped."""


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine; also for a partial or an object."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Threads:
    """A pool of threads that run plain functions. No exception of theirs ends a loop.

    Args:
        count: maximum calls at a time.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = DaemonThreads(count, name)

    def wrapped(self, function: Callable[[A], R | Awaitable[R]]) -> Callable[[A], Awaitable[R]]:
        """Return a coroutine function that calls `function` in a thread of the pool.

        If it returns an awaitable, as a lambda around a coroutine function does, that is awaited on
        the loop.
        """

        def call(argument: A) -> R | Awaitable[R]:
            try:
                return function(argument)
            except Exception:
                raise
            except BaseException as error:
                raise ExitRaised(f"it raised {error!r}") from error

        async def in_thread(argument: A) -> R:
            loop = asyncio.get_running_loop()
            try:
                result: Any = await loop.run_in_executor(self._pool, call, argument)
            except asyncio.CancelledError as error:
                raise HandlerStillRunning from error
            answer: R = await result if inspect.isawaitable(result) else result
            return answer

        return in_thread

    def close(self, *, drops: bool = True) -> None:
        """Accept no more calls. Running calls continue, but no task waits for them.

        Args:
            drops: whether calls that have not begun are dropped; otherwise they still run.
        """
        self._pool.shutdown(wait=False, cancel_futures=drops)
