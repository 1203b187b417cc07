"""How many messages of a client, and how many bytes, are on their way at once: not more than that.

Receives the sizes of messages about to be sent, from the event loop and from threads; hands on
places. Who finds none waits for one, in the order in which all came, so that no large message
starves behind small ones.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken, TooManyInFlight


class _Waiter:
    """Somebody who wants a place; `wake` is called once he has it."""

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.has_place = False


class InFlight:
    """The messages on their way.

    Invariant: count and size are within their limits, except that one message always fits; nobody
    waits while the first who waits would fit.

    Args:
        count_max: messages.
        size_max: bytes of their bodies.
    """

    def __init__(self, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self.count = 0
        self.size = 0

    def take(self, size: int) -> bool:
        """Take a place for a message at once, if there is one and nobody else waits."""
        with self._lock:
            if self._waiters or not self._fits(size):
                return False
            self._take(size)
            return True

    async def wait(self, size: int, timeout: float) -> None:
        """Take a place as soon as there is one.

        Raises:
            TooManyInFlight: when there is none within `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        waiter = _Waiter(size, lambda: loop.call_soon_threadsafe(ready.set))
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
                self.give(size)
            raise

    def block(self, size: int, timeout: float) -> None:
        """Take a place as soon as there is one; the calling thread waits.

        Raises:
            TooManyInFlight: when there is none within `timeout` seconds.
        """
        ready = threading.Event()
        waiter = _Waiter(size, ready.set)
        if self._queue_up(waiter) or ready.wait(timeout) or not self._give_up(waiter):
            return
        raise self._too_many(timeout)

    def give(self, size: int) -> None:
        """Give a place back; whoever waits first gets it."""
        with self._lock:
            self.count -= 1
            self.size -= size
            if self._waiters:
                self._serve()

    def invariants(self) -> None:
        """Hold the class's invariant.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        if self.count > self._count_max or (self.size > self._size_max and self.count > 1):
            raise InvariantBroken(f"{self.count} messages of {self.size} bytes are on their way")
        if self._waiters and self._fits(self._waiters[0].size):
            raise InvariantBroken("somebody waits for a place that is free")

    def _fits(self, size: int) -> bool:
        return not self.count or (
            self.count < self._count_max and self.size + size <= self._size_max
        )

    def _take(self, size: int) -> None:
        self.count += 1
        self.size += size

    def _queue_up(self, waiter: _Waiter) -> bool:
        """Wait in line; return whether a place was free after all."""
        with self._lock:
            self._waiters.append(waiter)
            self._serve()
            return waiter.has_place

    def _give_up(self, waiter: _Waiter) -> bool:
        """Leave the line; return False when a place was given meanwhile."""
        with self._lock:
            if waiter.has_place:
                return False
            self._waiters.remove(waiter)
            self._serve()  # a smaller one behind may fit
            return True

    def _serve(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size):
            waiter = self._waiters.popleft()
            self._take(waiter.size)
            waiter.has_place = True
            waiter.wake()

    def _too_many(self, timeout: float) -> TooManyInFlight:
        return TooManyInFlight(
            f"no place in {timeout:.3g} s: {self.count} messages of {self.size} bytes are on their"
            " way; wait for some, or raise in_flight_count_max or in_flight_size_max"
        )
