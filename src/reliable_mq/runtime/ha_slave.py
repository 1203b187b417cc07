"""The slave's side of replication: follows a master's log.

It connects to the master, hands on what arrives, and reports how far this slave has the log.
Source: Apache RocketMQ `DefaultHAClient`.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from reliable_mq.errors import FrameError, StoreError
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.copied_log import CopiedLog, CopiedRecord
from reliable_mq.replication.ha_frames import Transfer, TransferReader, encode_report
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.runtime.listener import now_ms
from reliable_mq.runtime.tls_contexts import reason_of
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

RETRY_SECONDS = 5.0
"""Seconds until a connection that failed is tried again, and the most that one may take."""
SILENT_SECONDS = 20.0
"""A master that sends nothing for so long is gone: `haHousekeepingInterval`."""
ALONE_SECONDS = 5.0
"""After so long without an address of a master, the log says so."""
REPORT_SECONDS = 5.0
"""A report is repeated after so long: `haSendHeartbeatInterval`."""
_TEND_SECONDS = 1.0
_READ_SIZE = 1024 * 1024
_CLOSED = "the master has closed the connection"
_CLOSED_AT_ONCE = (
    f"{_CLOSED} before it sent anything; its log says why. If it demands TLS, set tls.enable=true "
    "here"
)
_SKIPPED = b"\0"  # the first byte of a log: the highest of the first record's size


class SlaveStore(Protocol):
    """The store of a slave, as the connection sees it."""

    @property
    def segment_size(self) -> int:
        """Bytes of a segment of the log."""
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
        find_start: returns where the master's log begins; only an empty slave asks.
        tls: gives the context of an encrypted connection; None: it is plain.
        who: the names that this slave and its master share, for the log.
    """

    def __init__(
        self,
        store: SlaveStore,
        find_master: Callable[[], str],
        find_start: Callable[[], Awaitable[int]],
        tls: Callable[[], ssl.SSLContext] | None = None,
        who: str = "",
    ) -> None:
        self._who = who
        self._store = store
        self._tls = tls
        self._find_master = find_master
        self._find_start = find_start
        self._kept = asyncio.Event()  # more is stored
        self._writer: asyncio.StreamWriter | None = None  # while it follows
        self._reported = 0.0  # when
        self._heard = 0.0
        self._told = ""  # the last trouble that has a line in the log
        self.master = MasterState()

    def stored(self) -> None:
        """Report that more of the log is stored."""
        self._kept.set()
        if self._writer is not None:
            self._report(self._writer)

    def _report(self, writer: asyncio.StreamWriter) -> None:
        kept = self._store.kept
        if kept:
            writer.write(encode_report(kept))
        self._reported = time.monotonic()
        self.master.reported_ms = now_ms()

    async def follow_forever(self) -> None:
        """Connect, follow until the connection ends, and again."""
        alone_since = time.monotonic()
        while True:
            address = self._find_master()
            if not address and alone_since and time.monotonic() - alone_since > ALONE_SECONDS:
                alone_since = 0.0  # it is told once
                broker_events.MASTER_UNKNOWN.log(log, who=self._who)
            if address:
                alone_since = time.monotonic()
                try:
                    await self._follow(address)
                except (OSError, TimeoutError, EOFError, FrameError, StoreError) as error:
                    self._tell(address, error)
                self.master.address = ""
            await asyncio.sleep(RETRY_SECONDS if address else RETRY_SECONDS / 50)

    def _tell(self, address: str, error: Exception) -> None:
        reason = reason_of(error) or "no answer"
        if reason != self._told:
            self._told = reason
            broker_events.MASTER_LOST.log(log, master=address, reason=reason)

    async def _follow(self, address: str) -> None:
        place = host_and_port_of(address)
        async with asyncio.timeout(RETRY_SECONDS):
            reader, writer = await asyncio.open_connection(
                place.host, place.port, ssl=self._tls() if self._tls is not None else None
            )
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
        if not begin:
            begin = await self._find_start()
            if begin:
                store.begin_at(begin)
            else:  # to ask for offset 0 is to ask for the newest file
                skipped = len(_SKIPPED)
        writer.write(encode_report(begin + skipped))
        self.master.address = address
        self._heard = self._reported = time.monotonic()
        self._writer = writer
        tending = asyncio.ensure_future(self._tend_forever(writer))
        try:
            await self._take_forever(reader, CopiedLog(begin, store.segment_size), skipped)
        finally:
            self._writer = None
            tending.cancel()

    async def _take_forever(
        self, reader: asyncio.StreamReader, copied: CopiedLog, skipped: int
    ) -> None:
        transfers, store, begin, is_followed = TransferReader(), self._store, copied.end, False
        while True:
            await store.room()
            try:
                data = await reader.read(_READ_SIZE)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError(self._why_ended(is_followed))
            self._heard = time.monotonic()
            records: list[CopiedRecord] = []
            self.master.heard_ms = now_ms()
            found = transfers.feed(data)
            for offset, part in found:
                self.master.end = max(self.master.end, offset + len(part))
                self.master.rate.add(len(part), self._heard)
                if not skipped:
                    records += copied.take(Transfer(offset, part))
                elif part:
                    records += copied.take(Transfer(offset - skipped, _SKIPPED + part))
                    skipped = 0
            if found and not is_followed:  # only now: an address that answers may be anybody's
                is_followed, self._told = True, ""
                address = self.master.address
                broker_events.MASTER_FOLLOWED.log(log, master=address, log_offset=begin)
            if records:
                store.copy(records)
                if head := records[-1].head:
                    self.master.newest_ms = head.store_time_ms

    def _why_ended(self, is_followed: bool) -> str:
        if time.monotonic() - self._heard > SILENT_SECONDS:
            return f"the master said nothing for {SILENT_SECONDS:g} s"
        return _CLOSED if is_followed else _CLOSED_AT_ONCE

    async def _tend_forever(self, writer: asyncio.StreamWriter) -> None:
        """Repeat the report, and end the connection to a master that says nothing."""
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            now = time.monotonic()
            if now - self._heard > SILENT_SECONDS:
                writer.transport.abort()
                return
            if now - self._reported >= REPORT_SECONDS:
                self._report(writer)
