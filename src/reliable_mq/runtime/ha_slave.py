"""The slave's side of replication: follows a master's log.

It connects to the master, hands on what arrives, and reports how far this slave has the log. Before
it copies, it lets the master send the end of what the slave has, and compares the bytes.
Invariant K9: a slave copies only behind a log that its master has, too.
Source: Apache RocketMQ `DefaultHAClient`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from reliable_mq.errors import FrameError, LogsDiffer, StoreError
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.copied_log import CopiedLog, CopiedRecord
from reliable_mq.replication.ha_frames import Transfer, TransferReader, encode_report
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.replication.log_comparison import LogComparison, comparison_begins
from reliable_mq.runtime.listener import now_ms
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

RETRY_SECONDS = 5.0
"""Seconds until a connection that failed is tried again, and the most that one may take."""
SILENT_SECONDS = 20.0
"""A master that sends nothing for so long is gone: `haHousekeepingInterval`."""
REPORT_SECONDS = 5.0
"""A report is repeated after so long: `haSendHeartbeatInterval`."""
_READ_SIZE = 1024 * 1024
_SKIPPED = b"\0"  # the first byte of a log: the highest of the first record's size


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


class HaSlave:
    """Follows a master for as long as it runs.

    Args:
        store: takes the records.
        find_master: returns the master's address for slaves; "": it is not known yet.
        find_range: returns where the master's log begins and ends.
    """

    def __init__(
        self,
        store: SlaveStore,
        find_master: Callable[[], str],
        find_range: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        self._store = store
        self._find_master = find_master
        self._find_range = find_range
        self._kept = asyncio.Event()  # more is stored than was reported
        self._told = ""  # the last trouble that has a line in the log
        self.master = MasterState()

    def stored(self) -> None:
        """Report soon: more of the log is stored."""
        self._kept.set()

    async def follow_forever(self) -> None:
        """Connect, follow until the connection ends, and again."""
        while True:
            address = self._find_master()
            if address:
                try:
                    await self._follow(address)
                except (OSError, TimeoutError, EOFError, FrameError, StoreError) as error:
                    self._tell(address, error)
                self.master.address = ""
            await asyncio.sleep(RETRY_SECONDS if address else RETRY_SECONDS / 50)

    def _tell(self, address: str, error: Exception) -> None:
        reason = str(error) or "no answer"
        if reason != self._told:
            self._told = reason
            broker_events.MASTER_LOST.log(log, master=address, reason=reason)

    async def _follow(self, address: str) -> None:
        reader, writer = await _connected(address)
        try:
            await self._copy(address, reader, writer)
        finally:
            writer.close()

    async def _copy(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        store = self._store
        while store.kept < store.end:  # the first report is an acknowledgement, too
            self._kept.clear()
            await self._kept.wait()
        begin, skipped = store.end, 0
        master_range = await self._find_range()
        incoming = _Incoming(reader, store, self.master)
        if begin:
            await self._verify(address, master_range, incoming, writer)
        else:
            begin = master_range[0]
            if begin:
                store.begin_at(begin)
            else:  # to ask for offset 0 is to ask for the newest file
                skipped = len(_SKIPPED)
            writer.write(encode_report(begin + skipped))
        store.verified(is_same=True)
        self.master.address, self._told = address, ""
        broker_events.MASTER_FOLLOWED.log(log, master=address, log_offset=begin)
        self._kept.set()  # the first report named less than the slave has
        reporting = asyncio.ensure_future(self._report_forever(writer))
        try:
            await self._take_forever(incoming, CopiedLog(begin, store.segment_size), skipped)
        finally:
            reporting.cancel()

    async def _verify(
        self,
        address: str,
        master_range: tuple[int, int],
        incoming: "_Incoming",
        writer: asyncio.StreamWriter,
    ) -> None:
        """Return when the slave's log is a part of the master's; the next transfer continues it.

        Raises:
            LogsDiffer: when the slave has something else, or more, that may be acknowledged.
        """
        store, (start, end) = self._store, master_range
        lowest, common = max(store.start, start), min(store.end, end)
        if store.end <= start:
            raise LogsDiffer(
                f"this slave's log ends at {store.end}, and the log of master {address} begins at "
                f"{start}: nothing can be compared; give the slave an empty store"
            )
        agreed = lowest
        for number, begin in enumerate(comparison_begins(lowest, store.last_record, common)):
            if common <= lowest:
                break
            comparison = LogComparison(begin, common, store.read)
            if number:
                await self._compare_apart(address, comparison)
            else:
                writer.write(encode_report(begin))
                await incoming.compare(comparison)
            if comparison.differs_at < 0:
                agreed = common if common == store.end else store.begin_of_record(common)
                break
            agreed = store.begin_of_record(comparison.differs_at)
            if begin <= store.begin_of_record(max(agreed - 1, 0)) < agreed:
                break  # a whole record before is the same
            agreed = lowest
        if agreed == store.end:
            return
        store.verified(is_same=False)
        if agreed < store.acknowledged:
            raise LogsDiffer(
                f"this store ({store.start} to {store.end}) and master {address} ({start} to {end})"
                f" differ from log offset {agreed} on: the {store.end - agreed} bytes here may have"
                " been acknowledged; to give them up, stop this broker and run `reliable-mq broker "
                f"truncate --to {agreed}`, which keeps them in a file"
            )
        store.truncate(agreed)
        raise LogsDiffer(
            f"the {store.end - agreed} bytes of this store from log offset {agreed} on were never "
            f"acknowledged, and master {address} ({start} to {end}) does not have them"
        )

    async def _compare_apart(self, address: str, comparison: LogComparison) -> None:
        """Compare over a connection of its own."""
        reader, writer = await _connected(address)
        try:
            writer.write(encode_report(comparison.at))
            await _Incoming(reader, self._store, self.master).compare(comparison)
        finally:
            writer.close()

    async def _take_forever(self, incoming: "_Incoming", copied: CopiedLog, skipped: int) -> None:
        while True:
            records: list[CopiedRecord] = []
            for offset, part in await incoming.transfers():
                if not skipped:
                    records += copied.take(Transfer(offset, part))
                elif part:
                    records += copied.take(Transfer(offset - skipped, _SKIPPED + part))
                    skipped = 0
            if records:
                self._store.copy(records)

    async def _report_forever(self, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._kept.wait()
            except TimeoutError:
                pass
            self._kept.clear()
            if self._store.kept:
                writer.write(encode_report(self._store.kept))
                self.master.reported_ms = now_ms()


class _Incoming:
    """The transfers of one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, store: SlaveStore, master: MasterState
    ) -> None:
        self._reader, self._store, self._master = reader, store, master
        self._frames = TransferReader()
        self._rest: list[Transfer] = []

    async def transfers(self) -> list[Transfer]:
        """Return the next transfers.

        Raises:
            EOFError, TimeoutError, OSError: when none come any more.
            FrameError: when they are no transfers.
        """
        if self._rest:
            rest, self._rest = self._rest, []
            return rest
        await self._store.room()
        async with asyncio.timeout(SILENT_SECONDS):
            data = await self._reader.read(_READ_SIZE)
        if not data:
            raise EOFError("the master has closed the connection")
        found = self._frames.feed(data)
        master = self._master
        master.heard_ms = now_ms()
        for offset, part in found:
            master.end = max(master.end, offset + len(part))
            master.rate.add(len(part), time.monotonic())
        return found

    async def compare(self, comparison: LogComparison) -> None:
        """Compare until the result is known; what is behind comes with the next transfers."""
        while not comparison.is_done:
            rest = [comparison.take(each) for each in await self.transfers()]
            self._rest = [each for each in rest if each is not None]


async def _connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = host_and_port_of(address)
    async with asyncio.timeout(RETRY_SECONDS):
        return await asyncio.open_connection(place.host, place.port)
