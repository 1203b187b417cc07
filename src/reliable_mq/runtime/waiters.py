"""The calls of one connection that wait for their replies, under one timer.

A timer for each call would be made and cancelled with every request, and nearly none ever rings.
Here the timer stands at the earliest deadline there was when it was set. When it rings, whoever is
late is told, and it is set for the next; a call with an earlier deadline sets it back.
"""

import asyncio
import math
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken, ReliableMQError, RequestTimeout
from reliable_mq.wire.command import Command

GRAIN_SECONDS = 0.01
"""Not more often is looked at all who wait: a time-out may come so late."""


_Waiter = tuple[asyncio.Future[Command], float, int, float]  # its deadline, code and time-out


class Waiters:
    """Who waits for which opaque.

    C1: one opaque, one waiter; a waiter ends with its reply, its time-out, or the connection. While
    anybody waits, the timer is set, and not later than the earliest deadline, or than a grain
    after it last rang.

    Args:
        address: the peer, for the words of a time-out.
        loop: the event loop of the connection.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self._waiters: dict[int, _Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    @property
    def count(self) -> int:
        """How many calls are looked after; some may have given up."""
        return len(self._waiters)

    @property
    def waiting(self) -> int:
        """How many calls have no answer yet."""
        return sum(not future.done() for future, *_ in self._waiters.values())

    def add(self, opaque: int, code: int, timeout: float) -> asyncio.Future[Command]:
        """Return the future of a reply; it raises RequestTimeout after `timeout` seconds."""
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout
        self._waiters[opaque] = (future, deadline, code, timeout)
        if deadline < self._rings_at:
            self._set(deadline)
        return future

    def remove(self, opaque: int) -> None:
        """Forget a call that has ended."""
        self._waiters.pop(opaque, None)

    def answer(self, command: Command) -> None:
        """Hand a reply to its waiter; one that nobody waits for any more is dropped."""
        waiter = self._waiters.pop(command.opaque, None)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(command)

    def fail(self, make: Callable[[], ReliableMQError]) -> None:
        """End every call with an error of its own, and the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf
        for future, *_ in self._waiters.values():
            if not future.done():
                future.set_exception(make())

    def invariants(self) -> None:
        """Hold that the timer is set in time for whoever waits."""
        waiting = [when for future, when, *_ in self._waiters.values() if not future.done()]
        latest = max(min(waiting, default=math.inf), self._loop.time()) + 2 * GRAIN_SECONDS
        if waiting and self._rings_at > latest:
            raise InvariantBroken(f"C1: the timer of {self._address} rings too late")

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        now = self._loop.time()
        nearest = math.inf
        for opaque, (future, deadline, code, timeout) in list(self._waiters.items()):
            if future.done():  # its caller has given up
                del self._waiters[opaque]
            elif deadline <= now:
                future.set_exception(
                    RequestTimeout(
                        f"{self._address} did not answer request {code} in {timeout:.3g} s"
                    )
                )
            elif deadline < nearest:
                nearest = deadline
        if nearest < math.inf:
            self._set(max(nearest, now + GRAIN_SECONDS))
