"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from reliable_mq.errors import ForkedClient, UsageError
from reliable_mq.runtime.forks import call_in_child, leave_to_parent

T = TypeVar("T")

log = logging.getLogger(__name__)


async def on_loop(function: Callable[[], T]) -> T:
    """Call a function that must not run beside the loop; for `LoopThread.run`."""
    return function()


class LoopThread:
    """Runs coroutines on a uvloop loop in a background thread.

    The thread is a daemon: it never keeps a program alive that forgot to close it.

    Args:
        name: the thread's name, as debuggers show it.
    """

    def __init__(self, name: str = "reliable-mq") -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False
        self._process = os.getpid()
        self._thread.start()
        call_in_child(self._leave_to_parent)

    @property
    def is_alive(self) -> bool:
        """Whether the loop serves; False after `close`, or when something has ended its thread."""
        return self._thread.is_alive() and not self._closed

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that started the thread, which is not here."""
        return self._process != os.getpid()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return a future of its result.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, or something has ended its thread.
        """
        try:
            self._refuse_dead()
        except UsageError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[..., object], *words: object) -> None:
        """Call a function on the loop, behind what was submitted before; nobody hears of its end.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, or something has ended its thread.
        """
        self._refuse_dead()
        self._loop.call_soon_threadsafe(function, *words)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; it is cancelled when the wait is.

        Raises:
            ForkedClient: when another process has started the thread, of which this is a fork.
            UsageError: when the loop is closed, or this is the loop's own thread, which would wait
                for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("a synchronous call on the event loop's own thread waits for ever")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, stop the loop and end the thread; a second call does nothing."""
        if self._closed or self.is_foreign:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _refuse_dead(self) -> None:
        if self.is_foreign:
            raise ForkedClient(
                f"this client was started in process {self._process} and is used in {os.getpid()}:"
                " make and start a client there, after the fork"
            )
        if not self.is_alive:
            raise UsageError("this client is closed: make a new one")

    def _leave_to_parent(self) -> None:
        """Keep a forked child from closing descriptors of the loop: the parent waits on them."""
        leave_to_parent(self._loop, self._thread)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException:  # SystemExit or KeyboardInterrupt of a task or callback
            log.critical("the event loop has ended, nothing is served any more", exc_info=True)
        try:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
