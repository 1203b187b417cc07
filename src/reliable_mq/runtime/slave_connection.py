"""What a slave needs of its store, and what it gets from its master over one connection.

It receives the bytes of the connection. It hands on transfers, and compares the first of them with
the end of the slave's log.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from reliable_mq.replication.copied_log import CopiedRecord
from reliable_mq.replication.ha_frames import Transfer, TransferReader
from reliable_mq.replication.log_comparison import LogComparison

_READ_SIZE = 1024 * 1024
CLOSED = "the master has closed the connection"
CLOSED_AT_ONCE = (
    f"{CLOSED} before it sent anything; its log says why. If it demands TLS, set tls.enable=true "
    "here"
)


class SlaveStore(Protocol):
    """The store of a slave, as the connection sees it."""

    @property
    def segment_size(self) -> int:
        """Bytes of a segment of the log."""
        ...

    @property
    def start(self) -> int:
        """Where the log begins."""
        ...

    @property
    def last_record(self) -> int:
        """Where the last record begins."""
        ...

    @property
    def acknowledged(self) -> int:
        """The offset up to which messages may have been acknowledged to clients."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the log."""
        ...

    def begin_of_record(self, offset: int) -> int:
        """Return the largest begin of a record that is not behind an offset."""
        ...

    def verified(self, *, is_same: bool) -> None:
        """Note whether the log is the same as the master's: only then it may be served."""
        ...

    def truncate(self, offset: int) -> None:
        """Have the log cut at an offset; this ends the broker, and it starts again."""
        ...

    @property
    def end(self) -> int:
        """Where the log ends."""
        ...

    @property
    def kept(self) -> int:
        """The offset up to which the log is stored as the flush type promises."""
        ...

    def begin_at(self, offset: int) -> None:
        """Let the empty log begin at an offset."""
        ...

    def copy(self, records: Sequence[CopiedRecord]) -> None:
        """Append records; they are written at the end of the turn.

        Raises:
            StoreError: when one cannot be appended.
        """
        ...

    async def room(self) -> None:
        """Return when the disk has room."""
        ...


class IncomingTransfers:
    """The transfers of one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        store: SlaveStore,
        on_heard: Callable[[list[Transfer]], None],
    ) -> None:
        self._reader, self._store, self._on_heard = reader, store, on_heard
        self._frames = TransferReader()
        self._rest: list[Transfer] = []
        self.has_compared = False

    async def transfers(self) -> list[Transfer] | None:
        """Return the next transfers; None: none come any more.

        Raises:
            OSError: when the connection breaks.
            FrameError: when they are no transfers.
        """
        if self._rest:
            rest, self._rest = self._rest, []
            return rest
        await self._store.room()
        try:
            data = await self._reader.read(_READ_SIZE)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        found = self._frames.feed(data)
        self._on_heard(found)
        return found

    async def compare(self, comparison: LogComparison) -> None:
        """Compare until the result is known; what is behind comes with the next transfers.

        Raises:
            EOFError: when the connection ends before.
        """
        while not comparison.is_done:
            found = await self.transfers()
            if found is None:
                raise EOFError(CLOSED_AT_ONCE)
            rest = [comparison.take(each) for each in found]
            self._rest = [each for each in rest if each is not None]
        self.has_compared = True
