"""What a server writes to one peer: short answers at once, long ones piece by piece.

Receives frames of answers. Counts what the peer has not read, for the limits of its listener.
"""

import asyncio
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import StoreError
from reliable_mq.runtime.connection_roles import ConnectionKeeper, HeldConnection
from reliable_mq.runtime.held_bytes import UnreadAnswers
from reliable_mq.runtime.outbox import Outbox
from reliable_mq.runtime.turn_shares import TurnShares
from reliable_mq.wire.long_frame import LONG_SIZE_MIN, AnyFrame

_JOINED_MAX = 4096
_SMALL_MAX = 65_536  # for smaller answers, only the unsent rest counts
_WHOLE_MAX = LONG_SIZE_MIN  # longer answers are written in pieces; only they may be a `LongFrame`


class AnswerWriter(asyncio.Protocol):
    """The half of a connection that writes.

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

    def send(self, frames: Sequence[AnyFrame]) -> None:
        """Write frames, or begin to write them piece by piece if they are long."""
        transport = self._transport
        if transport.is_closing():
            return
        self._last_used = self._loop.time()
        if self._has_unsent and not transport.get_write_buffer_size():
            self._note_read()
        longest = len(frames[0]) if len(frames) == 1 else max(map(len, frames))
        if longest > _WHOLE_MAX or self._outbox.frames:
            self._put(frames)
            return
        if len(frames) > 1 and longest < _JOINED_MAX:  # a copy costs less than a list
            transport.write(b"".join(frames))  # type: ignore[arg-type]
        else:
            transport.writelines(frames)  # type: ignore[arg-type]
        if transport.get_write_buffer_size():
            self._note_unsent(sum(map(len, frames)))

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


def send_all(connections: Mapping[int, HeldConnection], answers: Sequence[Answer]) -> None:
    """Write answers to connections by their ids; those to one connection together."""
    if len(answers) == 1:
        ((connection_id, frame),) = answers
        if (connection := connections.get(connection_id)) is not None:
            connection.send([frame])
        return
    by_connection: defaultdict[int, list[AnyFrame]] = defaultdict(list)
    for connection_id, frame in answers:
        by_connection[connection_id].append(frame)
    for connection_id, frames in by_connection.items():
        if (connection := connections.get(connection_id)) is not None:
            connection.send(frames)
