"""Errands: what a thread has an event loop do for it, and waits for.

Receives the outcome on the loop; hands it to the thread. A `concurrent.futures.Future` does that
for any number who wait, with a condition and its locks; here one waits, on one lock.
"""

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ThreadFuture(Generic[T]):
    """One thread waits, one loop answers.

    C8: it ends once; whatever comes later is dropped. `wait` returns only when it has
    ended, or raises what interrupts the thread.
    """

    __slots__ = ("_error", "_future", "_gate", "_result", "is_given_up", "is_over")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._result: T
        self._error: BaseException | None = None
        self._future: asyncio.Future[Any] | None = None
        #: whether it has ended
        self.is_over = False
        #: whether the thread waits no more
        self.is_given_up = False

    def set_result(self, result: T) -> None:
        """End well."""
        if not self.is_over:
            self._result = result
            self._end()

    def set_exception(self, error: BaseException) -> None:
        """End with an error, which the thread raises."""
        if not self.is_over:
            self._error = error
            self._end()

    def depend_on(self, future: "asyncio.Future[Any]") -> None:
        """Have a future or task of the loop cancelled when the thread gives up."""
        self._future = future
        if self.is_given_up:
            future.cancel()

    def follow(self, future: "asyncio.Future[T]") -> None:
        """End as a future or task of the loop does."""
        self._future = future
        future.add_done_callback(self._followed)
        if self.is_given_up:
            future.cancel()

    def cancel(self) -> None:
        """Cancel what it depends on; the thread has given up. To be called on the loop."""
        self.is_given_up = True
        if self._future is not None:
            self._future.cancel()

    def wait(self) -> T:
        """Return what the loop has to say, or raise it. To be called by one thread, once.

        Raises:
            concurrent.futures.CancelledError: when what it depended on was cancelled.
        """
        self._gate.acquire()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:  # else the error, its traceback and this frame keep one another
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
