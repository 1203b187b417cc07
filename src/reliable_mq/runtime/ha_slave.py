"""The slave's side of replication: follows a master's log.

It connects to the master, hands on what arrives, and reports how far this slave has the log.
Before it copies, the master sends the end of what the slave has, and the bytes are compared.
Invariant K10: a slave copies only behind a log that its master has, too.
Source: Apache RocketMQ `DefaultHAClient`.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from reliable_mq.errors import FrameError, LogsDiffer, StoreError
from reliable_mq.host_and_port import NotAPlace, host_and_port_of
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.copied_log import CopiedLog, CopiedRun
from reliable_mq.replication.ha_frames import Transfer, encode_report
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.replication.log_comparison import LogComparison, comparison_begins
from reliable_mq.runtime.master_link import MasterLink
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.runtime.tls_contexts import reason_of
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

RETRY_SECONDS = 5.0
"""The most seconds until a connection that failed is tried again, and that one may take."""
FIRST_RETRY_SECONDS = 0.1
"""Seconds until the first try after a connection has ended. Each further pause is twice as long."""
SOON_SECONDS = 1.0
"""A connection that ended sooner does not make the pauses short again."""
SILENT_SECONDS = 20.0
"""A master that sends nothing for so long is gone: `haHousekeepingInterval`."""
ALONE_SECONDS = 5.0
"""After so long without an address of a master, the log says so."""
REPORT_SECONDS = 5.0
"""A report is repeated after so long: `haSendHeartbeatInterval`."""
_TEND_SECONDS = 1.0
_CLOSED = "the master has closed the connection"
CLOSED_AT_ONCE = (
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

    @property
    def has_room(self) -> bool:
        """Whether everything that was copied is written."""
        ...

    def copy(self, runs: Sequence[CopiedRun]) -> None:
        """Append records and blanks, and write them.

        Raises:
            StoreError: when one cannot be appended.
        """
        ...

    def left(self) -> None:
        """Note that no master sends its log now."""
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
        tls: gives the context of an encrypted connection; None: it is plain.
        who: the names that this slave and its master share, for the log.
    """

    def __init__(
        self,
        store: SlaveStore,
        find_master: Callable[[], str],
        find_range: Callable[[], Awaitable[tuple[int, int]]],
        tls: Callable[[], ssl.SSLContext] | None = None,
        who: str = "",
    ) -> None:
        self._who = who
        self._store = store
        self._tls = tls
        self._find_master = find_master
        self._find_range = find_range
        self._kept = asyncio.Event()  # more is stored
        self._link: MasterLink | None = None  # while it follows
        self._reported = self._heard = 0.0  # when
        self._told = ""  # the last trouble that has a line in the log
        self.master = MasterState()
        self._pause = FIRST_RETRY_SECONDS
        self._woken = asyncio.Event()
        self.on_hint: Callable[[], None] = lambda: None  # the master's tables have changed

    @property
    def is_following(self) -> bool:
        """Whether the master sends its log, which was compared."""
        return self._link is not None

    def wake(self) -> None:
        """Connect now, if no connection is open."""
        self._pause = FIRST_RETRY_SECONDS
        self._woken.set()

    def stored(self) -> None:
        """Report that more of the log is stored."""
        self._kept.set()
        if self._link is not None:
            self._report(self._link)

    def _report(self, link: MasterLink) -> None:
        if kept := self._store.kept:
            link.transport.write(self._report_of(kept))
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
                if time.monotonic() - alone_since > SOON_SECONDS:
                    self._pause = FIRST_RETRY_SECONDS
            await self._rest(RETRY_SECONDS / 50 if not address else self._pause)
            if address:
                self._pause = min(2 * self._pause, self._retry_seconds())

    async def _rest(self, seconds: float) -> None:
        """Wait until the next try, or until it is woken."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _retry_seconds(self) -> float:
        return RETRY_SECONDS

    def _report_of(self, offset: int) -> bytes:
        return encode_report(offset)

    def _new_link(self) -> MasterLink:
        return MasterLink(self._take_heard)

    def _tell(self, address: str, error: Exception) -> None:
        if (reason := reason_of(error) or "no answer") != self._told:
            self._told = reason
            broker_events.MASTER_LOST.log(log, master=address, reason=reason)

    async def _follow(self, address: str) -> None:
        link = await self._connected(address)
        try:
            await self._copy(address, link)
        finally:
            link.transport.close()

    async def _connected(self, address: str) -> MasterLink:
        try:
            place = host_and_port_of(address)
            tls = self._tls() if self._tls is not None else None
            async with asyncio.timeout(RETRY_SECONDS):
                _transport, link = await asyncio.get_running_loop().create_connection(
                    self._new_link, place.host, place.port or 0, ssl=tls
                )
        except (NotAPlace, UnicodeError, OverflowError) as error:  # others have told the address
            raise ConnectionError(f"this is no address: {error}") from error
        return link

    async def _copy(self, address: str, link: MasterLink) -> None:
        store = self._store
        while store.kept < store.end:  # the first report is an acknowledgement, too
            self._kept.clear()
            await self._kept.wait()
        master_range = await self._find_range()
        self._heard = self._reported = time.monotonic()
        tending = asyncio.ensure_future(self._tend_forever(link))
        try:
            begin, skipped = await self._meet(address, master_range, link)
            store.verified(is_same=True)
            self.master.address, self._link = address, link
            if begin < store.end or link.has_compared:
                self._report(link)  # the first one named less than the slave has
            await self._take_forever(link, CopiedLog(begin, store.segment_size), skipped)
        finally:
            self._link = None
            tending.cancel()
            store.left()

    async def _meet(
        self, address: str, master_range: tuple[int, int], link: MasterLink
    ) -> tuple[int, int]:
        """Find out what the master has, and ask for the rest.

        Return where the copy begins, and how many of the first bytes the master does not send.
        """
        store = self._store
        if begin := store.end:
            await self._verify(address, master_range, link)
            return begin, 0
        begin, skipped = master_range[0], 0
        if begin:
            store.begin_at(begin)
        else:  # to ask for offset 0 is to ask for the newest file
            skipped = len(_SKIPPED)
        link.transport.write(self._report_of(begin + skipped))
        return begin, skipped

    async def _greet(self, link: MasterLink) -> None:
        """Say who this slave is: without a controller, nobody asks."""

    def _note_epochs(self) -> None:
        """Note the epochs of what has arrived, before it is stored: without a controller, none."""

    def _take_heard(self, found: list[Transfer]) -> None:
        """Note what a master has sent."""
        self._heard = time.monotonic()
        if self.master.take(found, self._heard, now_ms()):
            self.on_hint()

    async def _verify(self, address: str, master_range: tuple[int, int], link: MasterLink) -> None:
        """Return when the slave's log is a part of the master's; the next transfer continues it.

        Raises:
            LogsDiffer: when the slave has something else, or more, that may be acknowledged.
        """
        store, (start, end) = self._store, master_range
        both = f"this store ({store.start} to {store.end}) and master {address} ({start} to {end})"
        nothing = LogsDiffer(f"{both} have no record in common: give this slave an empty store")
        lowest, common = max(store.start, start), min(store.end, end)
        if store.end <= start:
            raise nothing
        agreed = lowest
        for number, begin in enumerate(comparison_begins(lowest, store.last_record, common)):
            if common <= lowest:
                break
            comparison = LogComparison(begin, common, store.read)
            if number:
                await self._compare_apart(address, comparison)
            else:
                await self._compare(link, comparison)
            if comparison.differs_at < 0:
                agreed = common if common == store.end else store.begin_of_record(common)
                break
            agreed = store.begin_of_record(comparison.differs_at)
            if agreed > lowest and begin <= store.begin_of_record(agreed - 1) < agreed:
                break  # a whole record before is the same
            agreed = lowest
        if agreed == store.end:
            return
        store.verified(is_same=False)
        if agreed == lowest > 0:  # what was before may differ, too: where messages are in queues
            raise nothing
        if agreed < store.acknowledged:
            raise LogsDiffer(
                f"{both} differ from log offset {agreed} on: the {store.end - agreed} bytes here "
                "may have been acknowledged; to give them up, stop this broker and run "
                f"`reliable-mq broker truncate --to {agreed}`, which keeps them in a file"
            )
        store.truncate(agreed)
        raise LogsDiffer(
            f"the {store.end - agreed} bytes of this store from log offset {agreed} on were never "
            f"acknowledged, and master {address} ({start} to {end}) does not have them"
        )

    async def _compare_apart(self, address: str, comparison: LogComparison) -> None:
        """Compare over a connection of its own."""
        link = await self._connected(address)
        try:
            await self._greet(link)
            await self._compare(link, comparison)
        finally:
            link.transport.close()

    async def _compare(self, link: MasterLink, comparison: LogComparison) -> None:
        """Ask for what is compared, and compare it."""
        link.transport.write(self._report_of(comparison.at))
        if not await link.compare(comparison):
            raise EOFError(CLOSED_AT_ONCE)

    async def _take_forever(self, link: MasterLink, copied: CopiedLog, skipped: int) -> None:
        """Copy what arrives, until the connection ends."""
        store, begin = self._store, copied.end
        is_followed = link.has_compared and self._followed(begin)

        def take(found: list[Transfer]) -> bool:
            nonlocal skipped, is_followed
            runs: list[CopiedRun] = []
            for offset, part in found:
                if not skipped:
                    runs += copied.take(Transfer(offset, part))
                elif part:
                    runs += copied.take(Transfer(offset - skipped, _SKIPPED + part))
                    skipped = 0
            if not is_followed:  # only now: an address that answers may be anybody's
                is_followed = self._followed(begin)
            if runs:
                self._note_epochs()
                store.copy(runs)
                self.master.newest_ms = runs[-1].newest_ms or self.master.newest_ms
            return store.has_room

        await link.forward(take, store.room)
        raise EOFError(self._why_ended(is_followed))

    def _followed(self, begin: int) -> bool:
        self._told = ""
        broker_events.MASTER_FOLLOWED.log(log, master=self.master.address, log_offset=begin)
        return True

    def _why_ended(self, is_followed: bool) -> str:
        if time.monotonic() - self._heard > SILENT_SECONDS:
            return f"the master said nothing for {SILENT_SECONDS:g} s"
        return _CLOSED if is_followed else CLOSED_AT_ONCE

    async def _tend_forever(self, link: MasterLink) -> None:
        """Repeat the report, and end the connection to a master that says nothing."""
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            now = time.monotonic()
            if not self._store.has_room:
                self._heard = now  # nothing is read meanwhile
            elif now - self._heard > SILENT_SECONDS:
                link.transport.abort()
                return
            # Before the logs are compared, a report would acknowledge what may differ.
            if self._link is not None and now - self._reported >= REPORT_SECONDS:
                self._report(link)
