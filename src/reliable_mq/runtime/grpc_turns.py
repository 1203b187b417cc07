"""How many frames of a gRPC peer are handled in one go.

One read may bring 200,000 frames of a byte each, or a thousand calls. Others wait meanwhile, also
those who speak with the broker of the same process. So a read has a share of a turn of the loop;
what is more waits, and the peer is not read until then. See `TurnShares`.
"""

import asyncio
import time
from abc import abstractmethod
from typing import cast

from reliable_mq.runtime.connection_roles import ConnectionKeeper, HeldConnection

READ_AT_ONCE, READ_IN_SHORT = 128, 16
"""Frames of a read, and of one while somebody makes single calls. Those that wait are taken by so
few, too, until their slice of the turn is over."""
FEW_SIZE = 2048
"""So many bytes are read at once, though this turn of the loop has no time left for more."""


class FrameTurns(asyncio.Protocol):
    """A peer whose frames are handled in turns.

    While whole frames wait, the peer is not read, and a turn will come: at once, or when the peer
    has read its answers.

    Args:
        listener: gives the turns.
    """

    def __init__(self, listener: ConnectionKeeper) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._is_later = False  # whether frames wait for a turn
        self._is_unread = False  # whether the peer reads too slowly

    @abstractmethod
    def take(self, data: bytes, most: int) -> bool:
        """Handle so many frames of these bytes, and of those that wait; return whether more do."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the peer."""
        turns, most = self._listener.turns, 0
        if not self._is_later and (len(data) <= FEW_SIZE or turns.has_time()):
            most = READ_IN_SHORT if turns.is_short else READ_AT_ONCE
        if self.take(data, most) and not self._is_later:
            self._is_later = True
            self._transport.pause_reading()
            self._handle_later()

    def handle_waiting(self) -> None:
        """Handle waiting frames for one slice, unless the peer has too many unread answers."""
        if self._is_unread or self._transport.is_closing():
            return
        end = time.monotonic() + self._listener.slice_seconds  # the loop's clock is in whole ms
        while has_more := self.take(b"", READ_IN_SHORT):
            if time.monotonic() > end:
                break
        if self._transport.is_closing():
            return
        if has_more:
            self._handle_later()
            return
        self._is_later = False
        if not self._is_unread:
            self._transport.resume_reading()

    def _handle_later(self) -> None:
        self._listener.handle_later(cast("HeldConnection", self))

    def note_calls(self, count: int) -> None:
        """Note whether the peer makes single calls, or many at once; see `TurnShares`."""
        turns = self._listener.turns
        if count > 1:
            turns.many_from = self
        elif count and turns.many_from is not self:
            turns.single_at = time.monotonic()

    def pause_writing(self) -> None:
        """Take no more requests: the peer reads too slowly."""
        self._is_unread = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Take requests again."""
        self._is_unread = False
        if self._is_later:
            self._handle_later()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
