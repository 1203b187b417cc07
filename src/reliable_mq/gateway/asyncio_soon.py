"""Work of the endpoint that nobody waits for."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any

from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.asyncio_upstream import unless_refused


class Soon:
    """Work that nobody waits for. What is refused comes again by itself."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work, for the client for whom the running task works."""
        self._run(work, copy_context())

    def begin_own(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work as the endpoint: not as whoever has caused it."""
        own = copy_context()
        own.run(ACTING.set, None)
        self._run(work, own)

    def _run(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        task = asyncio.get_running_loop().create_task(unless_refused(work), context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def ended(self, seconds: float) -> None:
        """Wait until all work has ended, but not longer than `seconds`."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
