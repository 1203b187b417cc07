"""Limits how many messages of a client, and bytes of their bodies, are in flight.

It receives the sizes of messages before they are sent, from the event loop and from threads, and
grants places. A caller without a place waits in a first-come, first-served queue. So a large
message does not starve behind small ones.

A signal handler may call this code while its thread is in it, or raise an exception in it. Python
runs handlers only at the start of a function, at the end of a loop iteration, and after a call of a
C function. So steps that belong together have none of these between them. Thus no place is lost.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken, TooManyInFlight

Place = tuple[int, int]
"""Bytes and number of some messages."""


class _Waiter:
    """A waiting caller. `wake` is called after it got its place."""

    def __init__(self, size: int, count: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.count = count
        self.wake = wake
        self.has_place = False


class InFlight:
    """The messages in flight.

    Invariant C4: count and size are within their limits, except that a single holder, one message
    or one batch, always fits. No caller waits while the first one in the queue would fit.

    Args:
        count_max: maximum number of messages.
        size_max: maximum bytes of their bodies.
    """

    def __init__(self, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.RLock()  # a signal handler may send while its thread has it
        self._waiters: deque[_Waiter] = deque()
        self._returned: deque[Place] = deque()
        #: Releases places; call `settle` afterwards. A signal handler cannot raise before the
        #: release is done, as it could at the start of `release_places`. An iterator as argument
        #: releases only once.
        self.return_places = self._returned.extend
        self.count = 0
        self.size = 0
        self._holders = 0

    def take_places(self, size: int, count: int = 1) -> bool:
        """Take places for messages at once, if they are free and no caller waits.

        Args:
            size: bytes of all messages.
            count: number of messages; their places are released together.
        """
        has_place = False
        try:
            with self._lock:
                if self._returned:  # a caller was interrupted before `settle`
                    self._collect()
                if self._waiters or not self._fits(size, count):
                    return False
                self._take(size, count)
                has_place = True
                return True
        except BaseException:  # from a signal handler, after the place was taken
            if has_place:
                self.return_places([(size, count)])
            raise

    async def wait(self, size: int, timeout: float, count: int = 1) -> None:
        """Wait for places, and take them.

        Raises:
            TooManyInFlight: when they are not free within `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        waiter = _Waiter(size, count, lambda: loop.call_soon_threadsafe(ready.set))
        if self._queue_up(waiter):
            return
        try:
            async with asyncio.timeout(timeout):
                await ready.wait()
        except TimeoutError:
            if self._give_up(waiter):
                raise self._too_many(timeout) from None
        except BaseException:  # cancelled
            if not self._give_up(waiter):
                self.release_places(size, count)
            raise

    def block(self, size: int, timeout: float) -> None:
        """Wait for a place in the calling thread, and take it.

        Raises:
            TooManyInFlight: when none is free within `timeout` seconds.
        """
        ready = threading.Event()
        waiter = _Waiter(size, 1, ready.set)
        try:
            if self._queue_up(waiter) or ready.wait(timeout) or not self._give_up(waiter):
                return
        except BaseException:  # from a signal handler
            if not self._give_up(waiter):
                self.release_places(size)
            raise
        raise self._too_many(timeout)

    def release_places(self, size: int, count: int = 1) -> None:
        """Release places that were taken together. The first waiting caller gets them."""
        self.return_places([(size, count)])
        self.settle()

    def settle(self) -> None:
        """Give released places to the first waiting callers."""
        with self._lock:
            self._collect()
            if self._waiters:
                self._serve()

    def invariants(self) -> None:
        """Check the class's invariant.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        is_over = self.count > self._count_max or self.size > self._size_max
        if is_over and self._holders > 1:
            raise InvariantBroken(f"{self.count} messages of {self.size} bytes are in flight")
        if self._waiters and self._fits(self._waiters[0].size, self._waiters[0].count):
            raise InvariantBroken("a caller waits although its place is free")

    def _fits(self, size: int, count: int) -> bool:
        return not self._holders or (
            self.count + count <= self._count_max and self.size + size <= self._size_max
        )

    def _collect(self) -> None:
        while self._returned:
            size, count = self._returned[0]
            self.count -= count
            self.size -= size
            self._holders -= 1
            del self._returned[0]

    def _take(self, size: int, count: int) -> None:
        self.count += count
        self.size += size
        self._holders += 1

    def _queue_up(self, waiter: _Waiter) -> bool:
        """Join the queue of waiting callers; return whether a place was free at once."""
        with self._lock:
            self._waiters.append(waiter)
            self._serve()
            return waiter.has_place

    def _give_up(self, waiter: _Waiter) -> bool:
        """Leave the queue; return False when a place was granted meanwhile."""
        with self._lock:
            if waiter.has_place:
                return False
            if waiter in self._waiters:  # a signal handler may have interrupted `_queue_up`
                self._waiters.remove(waiter)
            self._serve()  # a smaller waiter behind it may fit
            return True

    def _serve(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size, self._waiters[0].count):
            waiter = self._waiters.popleft()
            self._take(waiter.size, waiter.count)
            waiter.has_place = True
            waiter.wake()

    def _too_many(self, timeout: float) -> TooManyInFlight:
        return TooManyInFlight(
            f"no place in {timeout:.3g} s: {self.count} messages of {self.size} bytes are on their"
            " way; wait for some, or raise in_flight_count_max or in_flight_bytes_max"
        )
