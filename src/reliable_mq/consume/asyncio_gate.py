"""The gate of a process's handlers: all run beside each other, or a suspect one runs alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from reliable_mq.errors import InvariantBroken

PATIENCE_SECONDS = 60.0
"""Longest wait for a call, in seconds: a handler that hangs must not stop all others."""


class HandlerGate:
    """Lets the handlers of one process run concurrently, or a single call alone.

    A message that kills its process costs every message that is handled at the same time an
    attempt. So a suspect call asks to run alone: it waits for running calls, and later calls wait
    for it. The gate is for all consumers of the process, on one event loop.

    E2: while a call has its turn to run alone, no other call begins. Calls that still run beside it
    were waited for once, without success.

    Args:
        patience: seconds that a call which must run alone waits for running calls, and that all
            other calls wait for it. Default 60.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._generation = 0
        self._running = 0  # of this generation: the gate still waits for these calls
        self._empty = asyncio.Event()  # no call of this generation is running
        self._empty.set()
        self._turn = asyncio.Lock()
        self._alone: object | None = None  # the call with the turn to run alone
        self._is_alone = False  # it does not wait for running calls any more
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
        """Note that a call begins beside others; pass the result to `end`.

        Raises:
            InvariantBroken: the gate is closed.
        """
        if self.is_closed:
            raise InvariantBroken("E2: a call begins beside one that is alone")
        self._running += 1
        self._empty.clear()
        return self._generation

    def end(self, generation: int) -> None:
        """Note that a call has ended; `generation` is the result of its `begin`."""
        if generation != self._generation:
            return  # the gate does not wait for it any more
        self._running -= 1
        if not self._running:
            self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Run the block after running calls have ended in time; one such block at a time.

        If the block takes longer than `patience`, its turn is over: others begin beside it.
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
        """Wait for running calls; calls that do not end in time are not waited for again."""
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
        """Check the invariant of the class."""
        if self._is_alone and self._running:
            raise InvariantBroken(f"E2: {self._running} calls began beside one that is alone")
        if self._running < 0 or self._empty.is_set() != (self._running == 0):
            raise InvariantBroken(f"E2: {self._running} calls run, but the event says otherwise")
        if self._open.is_set() == self.is_closed:
            raise InvariantBroken("E2: the event says otherwise than the gate's state")
