"""Reads the rows of messages that Redis calls done, many messages in one statement.

Receives entries of one consumer; returns those whose row says CONSUMED. After a reset, a group
receives thousands of copies at once. So lookups of the same moment share one statement, as claims
share one round trip to Redis.
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
    """The lookups of one consumer. Belongs to one event loop.

    Invariant: at most one statement is in flight; later lookups go with the next one.

    Args:
        ask: returns the message ids of the entries whose row says CONSUMED. It runs in a thread,
            and may raise.
        threads: runs `ask`.
    """

    def __init__(self, ask: Callable[[Sequence[LogEntry]], set[str]], threads: Executor) -> None:
        self._ask = ask
        self._threads = threads
        self._one_at_a_time = asyncio.Lock()
        self._next: _Look | None = None

    async def consumed(self, entries: Sequence[LogEntry]) -> set[str]:
        """Return the ids of entries whose row says CONSUMED, and maybe ids of other callers.

        Raises:
            Exception: any error of `ask`; all callers that share the statement get it.
        """
        if self._next is None:
            together: list[LogEntry] = []
            self._next = _Look(together, asyncio.create_task(self._run_lookup(together)))
        look = self._next
        look.entries.extend(entries)
        return await asyncio.shield(look.answer)  # other callers wait for it, too

    async def _run_lookup(self, entries: list[LogEntry]) -> set[str]:
        async with self._one_at_a_time:
            self._next = None
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._ask, entries
            )
