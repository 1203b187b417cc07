"""How many messages of a client, and how many bytes, are on their way at once: not more than that.

Receives the sizes of messages about to be sent, from the event loop and from threads; hands on
places. Who finds none waits for one, in the order in which all came, so that no large message
starves behind small ones.

A signal handler may send while its thread is in here, or raise there: Python calls it at the begin
of its functions, at the end of a loop's turn and behind functions of C, and nowhere else. So what
belongs together has none of these in between, and no place is lost.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken, TooManyInFlight

Place = tuple[int, int]
"""The bytes of some messages, and how many they are."""


class _Waiter:
    """Somebody who wants a place; `wake` is called once he has it."""

    def __init__(self, size: int, count: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.count = count
        self.wake = wake
        self.has_place = False


class InFlight:
    """The messages on their way.

    Invariant: count and size are within their limits, except that one message, or one batch, always
    fits; nobody waits while the first who waits would fit.

    Args:
        count_max: messages.
        size_max: bytes of their bodies.
    """

    def __init__(self, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.RLock()  # a signal handler may send while its thread has it
        self._waiters: deque[_Waiter] = deque()
        self._handed_back: deque[Place] = deque()
        #: gives places back, to be followed by `settle`: no signal handler
        #: can raise before it has, as on the way into `give`. Of an iterator it does so once
        self.hand_back = self._handed_back.extend
        self.count = 0
        self.size = 0
        self._holders = 0

    def take(self, size: int, count: int = 1) -> bool:
        """Take places for so many messages at once, if there are and nobody else waits.

        Args:
            size: bytes of all of them.
            count: how many they are; they are given back as one, too.
        """
        has_place = False
        try:
            with self._lock:
                if self._handed_back:  # somebody was interrupted before `settle`
                    self._collect()
                if self._waiters or not self._fits(size, count):
                    return False
                self._take(size, count)
                has_place = True
                return True
        except BaseException:  # a signal's, on the way out
            if has_place:
                self.hand_back([(size, count)])
            raise

    async def wait(self, size: int, timeout: float, count: int = 1) -> None:
        """Take places as soon as there are.

        Raises:
            TooManyInFlight: when there is none within `timeout` seconds.
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
                self.give(size, count)
            raise

    def block(self, size: int, timeout: float) -> None:
        """Take a place as soon as there is one; the calling thread waits.

        Raises:
            TooManyInFlight: when there is none within `timeout` seconds.
        """
        ready = threading.Event()
        waiter = _Waiter(size, 1, ready.set)
        try:
            if self._queue_up(waiter) or ready.wait(timeout) or not self._give_up(waiter):
                return
        except BaseException:  # a signal's
            if not self._give_up(waiter):
                self.give(size)
            raise
        raise self._too_many(timeout)

    def give(self, size: int, count: int = 1) -> None:
        """Give places back as they were taken; whoever waits first gets them."""
        self.hand_back([(size, count)])
        self.settle()

    def settle(self) -> None:
        """Let who waits first have what was handed back."""
        with self._lock:
            self._collect()
            if self._waiters:
                self._serve()

    def invariants(self) -> None:
        """Hold the class's invariant.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        is_over = self.count > self._count_max or self.size > self._size_max
        if is_over and self._holders > 1:
            raise InvariantBroken(f"{self.count} messages of {self.size} bytes are on their way")
        if self._waiters and self._fits(self._waiters[0].size, self._waiters[0].count):
            raise InvariantBroken("somebody waits for a place that is free")

    def _fits(self, size: int, count: int) -> bool:
        return not self._holders or (
            self.count + count <= self._count_max and self.size + size <= self._size_max
        )

    def _collect(self) -> None:
        while self._handed_back:
            size, count = self._handed_back[0]
            self.count -= count
            self.size -= size
            self._holders -= 1
            del self._handed_back[0]

    def _take(self, size: int, count: int) -> None:
        self.count += count
        self.size += size
        self._holders += 1

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
            if waiter in self._waiters:  # else a signal was sooner
                self._waiters.remove(waiter)
            self._serve()  # a smaller one behind may fit
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
