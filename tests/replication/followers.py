"""The slave's side of a replication connection without a broker: it keeps what it is given."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from reliable_mq.replication.copied_log import CopiedRun
from reliable_mq.runtime.ha_slave import HaSlave


class KeptLog:
    """A store of a slave in memory; what is there at first is zeros."""

    def __init__(self, segment_size: int = 1024 * 1024, end: int = 0) -> None:
        self.segment_size = segment_size
        self.start = 0
        self._data = bytearray(end)
        self.records: list[CopiedRun] = []
        self.cuts: list[int] = []  # where it was told to be cut
        self.is_same: bool | None = None  # None: it was never compared

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    kept = acknowledged = end

    @property
    def last_record(self) -> int:
        return self.records[-1].offset if self.records else self.end

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset - self.start :][:size])

    def begin_of_record(self, offset: int) -> int:
        begins = [self.start, *(each.offset for each in self.records), self.end]
        return max(each for each in begins if each <= offset)

    def verified(self, *, is_same: bool) -> None:
        self.is_same = is_same

    def truncate(self, offset: int) -> None:
        self.cuts.append(offset)

    def begin_at(self, offset: int) -> None:
        self.start = offset

    @property
    def has_room(self) -> bool:
        return True

    def copy(self, runs: Sequence[CopiedRun]) -> None:
        self.records += runs
        self._data += b"".join(each.data for each in runs)

    def left(self) -> None:
        pass

    async def room(self) -> None:
        pass


@asynccontextmanager
async def following(
    port: int, tls: Callable[[], ssl.SSLContext] | None = None, store: KeptLog | None = None
) -> AsyncIterator[KeptLog]:
    """Follow the master at a port of this machine."""

    kept = store or KeptLog()

    async def find_range() -> tuple[int, int]:
        """Say that the master has as much as this slave."""
        return 0, kept.end

    slave = HaSlave(kept, lambda: f"127.0.0.1:{port}", find_range, tls)
    task = asyncio.ensure_future(slave.follow_forever())
    try:
        yield kept
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
