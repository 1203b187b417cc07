"""The slave's side of a replication connection without a broker: it keeps what it is given."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from reliable_mq.replication.copied_log import CopiedRecord
from reliable_mq.runtime.ha_slave import HaSlave


class KeptLog:
    """A store of a slave in memory."""

    def __init__(self, segment_size: int = 1024 * 1024, end: int = 0) -> None:
        self.segment_size = segment_size
        self.end = self.kept = end
        self.records: list[CopiedRecord] = []

    def begin_at(self, offset: int) -> None:
        self.end = self.kept = offset

    def copy(self, records: Sequence[CopiedRecord]) -> None:
        self.records += records
        self.end = self.kept = records[-1].offset + len(records[-1].data)

    async def room(self) -> None:
        pass


@asynccontextmanager
async def following(
    port: int, tls: Callable[[], ssl.SSLContext] | None = None, store: KeptLog | None = None
) -> AsyncIterator[KeptLog]:
    """Follow the master at a port of this machine."""

    async def find_start() -> int:
        return 0

    store = store or KeptLog()
    slave = HaSlave(store, lambda: f"127.0.0.1:{port}", find_start, tls)
    task = asyncio.ensure_future(slave.follow_forever())
    try:
        yield store
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
