"""The calls of one connection that wait for a reply, and their timeouts.

A reply is matched to its request by `opaque`, the sender's request number. One timer serves all
calls that wait: a timer per call would be created and cancelled with every request. It is set to
the earliest deadline; when it fires, late calls fail.
"""

import asyncio
import math
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken, ReliableMQError, RequestTimeout
from reliable_mq.wire.command import Command

GRAIN_SECONDS = 0.01
"""Minimum seconds between two runs of the timer: a timeout may be this much late."""

_Waiter = tuple[asyncio.Future[Command], float, int, float]  # deadline, request code, timeout


class Waiters:
    """The waiting calls of one connection, by opaque.

    C1: each opaque has one waiter. A waiter ends with its reply, its timeout, or the end of the
    connection. While a call waits, the timer is set: to the earliest deadline, or to one grain
    after its last run when that is later.

    Args:
        address: the peer, for error texts.
        loop: the event loop of the connection.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self.calls: dict[int, _Waiter] = {}  # with those whose caller has given up
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    @property
    def waiting(self) -> int:
        """Number of calls without an answer."""
        return sum(not future.done() for future, *_ in self.calls.values())

    def add(
        self, opaque: int, code: int, timeout: float, told: asyncio.Future[Command] | None = None
    ) -> asyncio.Future[Command]:
        """Return the future of a reply; it raises RequestTimeout after `timeout` seconds."""
        future: asyncio.Future[Command] = told or self._loop.create_future()
        deadline = self._loop.time() + timeout
        self.calls[opaque] = (future, deadline, code, timeout)
        if deadline < self._rings_at:
            self._set(deadline)
        return future

    def remove(self, opaque: int) -> None:
        """Forget a call that has ended."""
        self.calls.pop(opaque, None)

    def answer(self, command: Command) -> None:
        """Give a reply to its waiter. A reply without a waiter is dropped."""
        waiter = self.calls.pop(command.opaque, None)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(command)

    def fail(self, make: Callable[[], ReliableMQError]) -> None:
        """Fail each waiting call with an error from `make`, and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf
        for future, *_ in self.calls.values():
            if not future.done():
                future.set_exception(make())

    def invariants(self) -> None:
        """Check C1: the timer does not fire too late for a waiting call."""
        waiting = [when for future, when, *_ in self.calls.values() if not future.done()]
        latest = max(min(waiting, default=math.inf), self._loop.time()) + 2 * GRAIN_SECONDS
        if waiting and self._rings_at > latest:
            raise InvariantBroken(f"C1: the timer of {self._address} fires too late")

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        now = self._loop.time()
        nearest = math.inf
        for opaque, (future, deadline, code, timeout) in list(self.calls.items()):
            if future.done():  # its caller has given up
                del self.calls[opaque]
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
