"""Lets the handlers of one process run side by side, or a single call alone.

A message that kills its process costs an attempt of each message that is handled beside it. A call
that must not pay for others, nor let others pay for it, asks to be alone: it waits for those that
run, and those that come later wait for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from reliable_mq.errors import InvariantBroken

PATIENCE_SECONDS = 60.0
"""How long a call is waited for: a handler that hangs must not stop all others."""


class HandlerGate:
    """The calls of all consumers of one process, on one event loop.

    E2: while a call has its turn to be alone no other begins, and those that run beside it
    were waited for in vain, once.

    Args:
        patience: seconds for which those that run are waited for by one that will be alone, and
            this one by all others.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._generation = 0
        self._running = 0  # of this generation: they are still worth waiting for
        self._empty = asyncio.Event()  # none of them runs
        self._empty.set()
        self._turn = asyncio.Lock()
        self._alone: object | None = None  # who has the turn
        self._is_alone = False  # nobody is waited for any more
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        """Whether a call is alone, or is about to be."""
        return self._alone is not None

    async def opened(self) -> None:
        """Wait until calls may begin."""
        while self.is_closed:
            await self._open.wait()

    def begin(self) -> int:
        """Note that a call begins beside others; return what `end` is to be told.

        Raises:
            InvariantBroken: when the gate is closed.
        """
        if self.is_closed:
            raise InvariantBroken("E2: a call begins beside one that is alone")
        self._running += 1
        self._empty.clear()
        return self._generation

    def end(self, generation: int) -> None:
        """Note that a call has ended that began with this answer."""
        if generation != self._generation:
            return  # nobody waits for it any more
        self._running -= 1
        if not self._running:
            self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run the block while no call runs that ends in time; one such block at a time.

        When the block takes longer than patience, its turn is over: others begin beside it.
        """
        await self._turn.acquire()
        self._alone = turn = object()
        self._open.clear()
        try:
            await self._drain()
            self._is_alone = True
            end = asyncio.get_running_loop().call_later(self._patience, self._end_turn, turn)
            try:
                yield
            finally:
                end.cancel()
        finally:
            self._end_turn(turn)

    async def _drain(self) -> None:
        """Wait for the calls that run; nobody waits for those again that do not end in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), self._patience)
        if self._running:
            self._generation += 1
            self._running = 0
            self._empty.set()

    def _end_turn(self, turn: object) -> None:
        """Open the gate, unless this turn is over already."""
        if self._alone is turn:
            self._alone, self._is_alone = None, False
            self._open.set()
            self._turn.release()

    def invariants(self) -> None:
        """Hold the class's invariant."""
        if self._is_alone and self._running:
            raise InvariantBroken(f"E2: {self._running} calls began beside one that is alone")
        if self._running < 0 or self._empty.is_set() != (self._running == 0):
            raise InvariantBroken(f"E2: who waits for {self._running} calls is told another number")
        if self._open.is_set() == self.is_closed:
            raise InvariantBroken("E2: who waits for the gate is not told whether it is open")
