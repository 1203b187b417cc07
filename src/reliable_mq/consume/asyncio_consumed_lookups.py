"""Looks at the rows of messages that Redis calls done, many messages in one statement.

Receives entries of one consumer; hands on which of them the consume log calls CONSUMED. A group
that was reset brings thousands of copies at once, so looks that are asked for at the same time
share one statement, as claims share one round trip to Redis.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from reliable_mq.idempotency.sql_consume_log import LogEntry


class _Look(NamedTuple):
    entries: list[LogEntry]
    answer: asyncio.Task[set[str]]


class ConsumedLookups:
    """The looks of one consumer. Belongs to one event loop.

    Invariant: at most one statement is on its way; what is asked meanwhile goes with the next.

    Args:
        ask: returns which message ids of these entries have a row that says CONSUMED. It runs in
            a thread, and may raise.
        threads: where it runs.
    """

    def __init__(self, ask: Callable[[Sequence[LogEntry]], set[str]], threads: Executor) -> None:
        self._ask = ask
        self._threads = threads
        self._one_at_a_time = asyncio.Lock()
        self._next: _Look | None = None

    async def consumed(self, entries: Sequence[LogEntry]) -> set[str]:
        """Return the ids of those whose row says CONSUMED, and maybe ids that others asked for.

        Raises:
            Exception: whatever `ask` raised; all who share the statement get it.
        """
        if self._next is None:
            together: list[LogEntry] = []
            self._next = _Look(together, asyncio.create_task(self._look(together)))
        look = self._next
        look.entries.extend(entries)
        return await asyncio.shield(look.answer)  # others wait for it, too

    async def _look(self, entries: list[LogEntry]) -> set[str]:
        async with self._one_at_a_time:
            self._next = None
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._ask, entries
            )
