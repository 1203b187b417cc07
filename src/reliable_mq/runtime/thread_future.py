"""The result of an errand: work that a thread gives to an event loop, and waits for.

The loop sets the result, and the thread receives it. A `concurrent.futures.Future` supports any
number of waiters, with a condition and several locks. Here one thread waits, on one lock.
"""

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ThreadFuture(Generic[T]):
    """A future with one waiting thread and one event loop that completes it.

    C8: it completes once; later results are dropped. `wait` returns only after completion, or
    raises the exception that interrupts the thread.
    """

    __slots__ = ("_error", "_future", "_gate", "_result", "is_given_up", "is_over")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._result: T
        self._error: BaseException | None = None
        self._future: asyncio.Future[Any] | None = None
        #: whether it is complete
        self.is_over = False
        #: whether the thread has stopped waiting
        self.is_given_up = False

    def set_result(self, result: T) -> None:
        """Complete with a result."""
        if not self.is_over:
            self._result = result
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """Complete with an error; `wait` raises it."""
        if not self.is_over:
            self._error = error
            self._end()

    def depend_on(self, future: "asyncio.Future[Any]") -> None:
        """Cancel this future or task of the loop if the thread stops waiting."""
        self._future = future
        if self.is_given_up:
            future.cancel()

    def follow(self, future: "asyncio.Future[T]") -> None:
        """Complete with the outcome of a future or task of the loop."""
        self._future = future
        future.add_done_callback(self._followed)
        if self.is_given_up:
            future.cancel()

    def cancel(self) -> None:
        """Cancel the future it depends on: the thread has stopped waiting. Call it on the loop."""
        self.is_given_up = True
        if self._future is not None:
            self._future.cancel()

    def wait(self) -> T:
        """Return the result, or raise the error. Only one thread may call it, once.

        Raises:
            concurrent.futures.CancelledError: when the future it follows was cancelled.
        """
        self._gate.acquire()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:  # breaks the reference cycle of the error, its traceback and this frame
            del self._error

    def _followed(self, future: "asyncio.Future[T]") -> None:
        if future.cancelled():
            self.set_exception(CancelledError())
        elif (error := future.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())

    def _end(self) -> None:
        self.is_over = True
        self._future = None
        self._gate.release()
