"""The slave's side of replication under a controller.

It says who it is, and gets the epochs of the master's log. If its own log has more than the two
logs have in common, it is cut there. Then the bytes are compared, as without a controller: epochs
say which master wrote something, and only bytes say that it is the same.
Source: Apache RocketMQ `AutoSwitchHAClient`.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from reliable_mq.errors import FrameError, LogsDiffer
from reliable_mq.failover.epochs import Epoch, EpochHistory, agreed_offset
from reliable_mq.failover.switch_frames import (
    Hello,
    MasterFrames,
    Welcome,
    encode_hello,
    encode_report,
)
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.runtime.ha_slave import CLOSED_AT_ONCE, HaSlave, SlaveStore
from reliable_mq.runtime.master_link import MasterLink

RETRY_SECONDS = 1.0
"""Seconds until a connection that failed is tried again: a new master may still be starting."""


HELLO_SECONDS = 5.0
"""The most that a master may take to say what it has."""


class SwitchStore(SlaveStore, Protocol):
    """The store of a slave under a controller."""

    history: EpochHistory
    save_history: Callable[[], None]

    @property
    def surely_acknowledged(self) -> int:
        """The offset up to which this broker has said SEND_OK as a master; -1: it is not known."""
        ...


class SwitchSlave(HaSlave):
    """Follows a master for as long as it runs. See `HaSlave`.

    Args:
        own_id: the number of this broker at the controller.
    """

    def __init__(
        self,
        store: SwitchStore,
        own_id: int,
        find_master: Callable[[], str],
        find_range: Callable[[], Awaitable[tuple[int, int]]],
        tls: Callable[[], ssl.SSLContext] | None = None,
        who: str = "",
    ) -> None:
        super().__init__(store, find_master, find_range, tls, who)
        self._switch_store = store
        self._own_id = own_id
        self._frames = SwitchTransfers(self._note_epochs)
        self._welcomed = asyncio.Event()
        self._is_copying = False  # whether epochs of transfers are this log's
        self.confirmed = 0  # the log offset up to which all replicas in sync have the log

    def _retry_seconds(self) -> float:
        return RETRY_SECONDS

    def _report_of(self, offset: int) -> bytes:
        return encode_report(offset)

    def _new_link(self) -> MasterLink:
        self._frames, self._is_copying = SwitchTransfers(self._note_epochs), False
        self._welcomed.clear()
        return MasterLink(self._take_heard, self._frames)

    async def _greet(self, link: MasterLink) -> None:
        link.transport.write(encode_hello(Hello(self._own_id)))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._welcomed.wait()
        except TimeoutError:
            link.transport.abort()
            await link.transfers()  # it raises what is wrong, if anything arrived
            raise EOFError(CLOSED_AT_ONCE) from None

    async def _meet(
        self, address: str, master_range: tuple[int, int], link: MasterLink
    ) -> tuple[int, int]:
        store, history = self._switch_store, self._switch_store.history
        frames = self._frames
        await self._greet(link)
        welcome = frames.welcome or Welcome(0, ())
        if begin := store.end:
            if history.all:
                self._agree(address, welcome)
            await self._verify(address, (master_range[0], welcome.log_end), link)
        else:
            begin = master_range[0]
            if begin:
                store.begin_at(begin)
            link.transport.write(encode_report(begin))
        known = history.all
        if history.replace(each for each in welcome.epochs if each.start <= begin):
            self._save_history(known)
        self._frames, self._is_copying = frames, True
        self._note_epochs()
        return begin, 0

    def _agree(self, address: str, welcome: Welcome) -> None:
        """Return when the epochs say that the master's log has this slave's log.

        Raises:
            LogsDiffer: when it does not, and when this log must be cut first.
        """
        store = self._switch_store
        own = store.history.all
        agreed = agreed_offset(own, store.end, welcome.epochs, welcome.log_end)
        if agreed == store.end:
            return
        store.verified(is_same=False)
        here = f"this store (to {store.end}, epochs {_shown(own)})"
        there = f"master {address} (to {welcome.log_end}, epochs {_shown(welcome.epochs)})"
        if agreed < store.start:
            raise LogsDiffer(f"{here} and {there} have no epoch in common: give it an empty store")
        if agreed < store.surely_acknowledged:
            raise LogsDiffer(
                f"{here} and {there} are the same up to log offset {agreed}, and this broker has "
                f"acknowledged messages up to {store.surely_acknowledged}: the controller has "
                "elected a replica that lacks them; to give them up, stop this broker and run "
                f"`reliable-mq broker truncate --to {agreed}`, which keeps them in a file"
            )
        store.truncate(agreed)
        raise LogsDiffer(f"{here} and {there} are the same up to log offset {agreed} only")

    def _take_heard(self, found: list[Transfer]) -> None:
        super()._take_heard(found)
        self.confirmed = max(self.confirmed, self._frames.confirmed)
        if self._frames.welcome is not None:
            self._welcomed.set()

    def _note_epochs(self) -> None:
        """Note the epochs of what has arrived, before it is stored."""
        if not self._is_copying:
            return
        store = self._switch_store
        epochs, self._frames.epochs = self._frames.epochs, []
        known = store.history.all
        is_new = False
        for each in epochs:
            if each.number >= 0 and (not known or each >= known[0]):
                is_new |= store.history.begin(each)
        if is_new:
            self._save_history(known)

    def _save_history(self, before: tuple[Epoch, ...]) -> None:
        """Write the epochs; if the disk has no room, forget them, so that they are noted again.

        Without one of them on the disk, a start would cut what this slave has reported.
        """
        try:
            self._switch_store.save_history()
        except OSError:
            self._switch_store.history.replace(before)
            raise

    def _report(self, link: MasterLink) -> None:
        super()._report(link)
        if not self._store.kept:  # a master under a controller waits for a report of 0, too
            link.transport.write(encode_report(0))


class SwitchTransfers:
    """Takes transfers out of what a master sends, and keeps what is beside them.

    Args:
        on_epochs: called when epochs have arrived, before anybody has the transfers.
    """

    def __init__(self, on_epochs: Callable[[], None]) -> None:
        self._on_epochs = on_epochs
        self._frames = MasterFrames()
        self.welcome: Welcome | None = None
        self.epochs: list[Epoch] = []  # of transfers, not noted yet
        self.confirmed = 0

    def feed(self, data: bytes) -> list[Transfer]:
        """See `Frames`."""
        found: list[Transfer] = []
        for frame in self._frames.feed(data):
            if isinstance(frame, Welcome):
                if found or self.epochs:
                    raise FrameError("the master says what it has in the middle of a copy")
                self.welcome = frame
                continue
            if self.welcome is None:
                raise FrameError("the master sends its log before it has said what it has")
            if not self.epochs or self.epochs[-1] != frame.epoch:
                self.epochs.append(frame.epoch)
            self.confirmed = max(self.confirmed, frame.confirmed)
            if frame.transfer.offset >= 0:  # -1: it has no log yet
                found.append(frame.transfer)
        if self.epochs:
            self._on_epochs()
        return found


def _shown(epochs: tuple[Epoch, ...]) -> str:
    shown = [f"{number}-{start}" for number, start in epochs[-3:]]
    return " ".join(["…", *shown] if len(epochs) > len(shown) else shown) or "none"
