"""Lets the handlers of one process run side by side, or a single call alone.

A message that kills its process costs an attempt of each message that is handled beside it. A call
that must not pay for others, nor let others pay for it, asks to be alone: it waits for those that
run, and those that come later wait for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PATIENCE_SECONDS = 60.0
"""How long others wait for one that is alone: a handler that hangs must not stop all of them."""


class HandlerGate:
    """The calls of all consumers of one process, on one event loop.

    Invariant: no call begins beside one that is alone, until its patience is over.

    Args:
        patience: seconds for which the gate stays closed at most.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._running = 0
        self._turn = asyncio.Lock()
        self._empty = asyncio.Event()
        self._open = asyncio.Event()
        self._empty.set()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        """Whether a call is alone, or is about to be."""
        return not self._open.is_set()

    async def opened(self) -> None:
        """Wait until calls may begin."""
        while self.is_closed:
            await self._open.wait()

    def begin(self) -> None:
        """Note that a call begins beside others; the gate is open."""
        self._running += 1
        self._empty.clear()

    def end(self) -> None:
        """Note that a call has ended."""
        self._running -= 1
        if not self._running:
            self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run the block while no call runs, as far as patience goes; one such block at a time."""
        async with self._turn:
            self._open.clear()
            opening = asyncio.get_running_loop().call_later(self._patience, self._open.set)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._empty.wait(), self._patience)
                yield
            finally:
                opening.cancel()
                self._open.set()
