"""Handlers that are plain functions: each call runs in a thread of a pool.

Receives deliveries on an event loop; hands on what the function returns. A function that ends its
thread on purpose (`sys.exit`) has failed like any other: nothing of that reaches the loop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from reliable_mq.client.consuming.subscription import Handler
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome
from reliable_mq.runtime.daemon_threads import DaemonThreads

A = TypeVar("A")
R = TypeVar("R")

SyncHandler = Callable[[Sequence[ReceivedMessage]], Sequence[Outcome]]
"""Runs in a thread of the consumer; gets and returns what a `Handler` does."""

AnyHandler = Handler | SyncHandler
"""A coroutine function runs on the event loop, anything else in threads."""


class ExitRaised(Exception):
    """A function raised what ends a thread or the program; it says what."""


class HandlerStillRunning(asyncio.CancelledError):
    """Who waited for a handler was cancelled, but a thread is in it and cannot be stopped."""


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Say whether calling `function` gives a coroutine; it may be a partial, or an object."""
    call = getattr(function, "__call__", None)  # noqa: B004 - what calls it, not whether it can
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Threads:
    """A pool of threads in which plain functions run, and nothing they raise ends a loop.

    Args:
        count: how many calls run at once.
        name: leads the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = DaemonThreads(count, name)

    def wrapped(self, function: Callable[[A], R | Awaitable[R]]) -> Callable[[A], Awaitable[R]]:
        """Return a coroutine function that calls `function` in a thread of the pool.

        When it returns something to be awaited (a lambda around a coroutine function does), that is
        awaited on the loop.
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
        """Take nothing more. A call that runs cannot be stopped; nobody waits for it.

        Args:
            drops: whether calls that have not begun are dropped; else they follow that one.
        """
        self._pool.shutdown(wait=False, cancel_futures=drops)
