"""What a peer of a server has not read yet: long answers are written to it piece by piece.

Receives frames of answers. Counts what is unread, for the limits of the listener.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import StoreError
from reliable_mq.runtime.connection_roles import ConnectionKeeper
from reliable_mq.runtime.held_bytes import UnreadAnswers
from reliable_mq.runtime.outbox import Outbox
from reliable_mq.wire.long_frame import AnyFrame

if TYPE_CHECKING:
    from reliable_mq.runtime.server_connection import TurnShares

_SMALL_MAX = 65_536  # for smaller answers, only the unsent rest counts


class LongAnswers(asyncio.Protocol):
    """The part of a connection that writes long answers, and knows what is unread.

    Args:
        listener: counts what is unread.
    """

    __slots__ = (
        "_connection",
        "_has_unsent",
        "_is_unread",
        "_last_used",
        "_listener",
        "_loop",
        "_outbox",
        "_transport",
        "_turns",
        "_unread",
    )

    def __init__(self, listener: ConnectionKeeper) -> None:
        self._listener = listener
        self._turns: TurnShares = listener.turns
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._is_unread = False  # whether the peer has too many unread answers
        self._has_unsent = False  # whether the listener has counted unread answers
        self._unread = UnreadAnswers()
        self._outbox = Outbox()  # answers that are written piece by piece
        self._transport: asyncio.Transport
        self._connection: PeerConnection | None = None

    @abstractmethod
    def cut_off(self, why: str) -> None:
        """Close the connection at once, and say why in the log."""

    @abstractmethod
    def _handle_later(self) -> None:
        """Get a turn, in which the rest of long answers is written."""

    @property
    def unsent_size(self) -> int:
        """Bytes in memory of unread answers."""
        return self._unread.held(self._transport.get_write_buffer_size() + self._outbox.held)

    @property
    def is_answering(self) -> bool:
        """Whether the peer has not got all of its answers, and may still get them."""
        is_unsent = self._outbox.frames or self._transport.get_write_buffer_size()
        return bool(is_unsent) and not self._transport.is_closing()

    def _note_unsent(self, size: int) -> None:
        """Note that answers of `size` bytes, which stay in memory together, may be unread."""
        unsent = self._transport.get_write_buffer_size() + self._outbox.held
        if self._connection is not None:
            self._has_unsent = True
            if size > _SMALL_MAX or unsent > _SMALL_MAX:
                if size:
                    self._unread.note_written(size)
                unsent = self._unread.held(unsent)
            self._listener.note_unsent(self._connection.id, unsent)

    def _put(self, frames: Sequence[AnyFrame]) -> None:
        """Write these frames piece by piece, in later turns. Requests wait until they are read."""
        self._outbox.put(frames)
        if not self._is_unread:
            self._handle_later()
        for frame in frames:
            if isinstance(frame, bytes):
                self._note_unsent(len(frame))

    def _write_some(self) -> None:
        """Write pieces as long as this turn of the loop may, and the peer reads."""
        self._last_used = self._loop.time()
        if self._transport.get_write_buffer_size():  # the system has not taken the last pieces
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` comes when it has
            return
        end = self._turns.written + (self._turns.now.written + 1) // 2
        while self._outbox.frames and self._turns.may_write and self._turns.written < end:
            try:
                piece = self._outbox.take()
            except (OSError, StoreError) as error:
                self.cut_off(f"closed, an answer cannot be read any more: {error}")
                return
            self._turns.note_written(len(piece))
            self._transport.write(piece)
        if self._transport.get_write_buffer_size():
            self._note_unsent(0)

    def _note_read(self) -> None:
        """Note that the peer has read its answers."""
        if self._has_unsent and self._connection is not None:
            self._has_unsent = self._outbox.held > 0
            self._listener.note_unsent(self._connection.id, self._outbox.held)
