"""What a peer of a server has sent, and waits for a turn of the event loop.

Requests of a peer are handled in time slices, so that other peers get their turn. Meanwhile the
peer is not read.
"""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from reliable_mq.errors import FrameError
from reliable_mq.runtime.connection_roles import (
    ConnectionKeeper,
    ConnectionOwner,
    Decode,
    HeldConnection,
)
from reliable_mq.runtime.long_answers import LongAnswers
from reliable_mq.wire.command import Command, decode_request
from reliable_mq.wire.frame import Frame, FrameReader

READ_AT_ONCE = 64
"""Of one read, at most so many requests are handled without a look at the clock."""
# At most this many requests with large answers are handled at a time. The others wait until the
# peer has read the answers.
_LARGE_AT_ONCE = 4


class WaitingRequests(LongAnswers):
    """The part of a connection whose requests wait.

    Args:
        listener: gives the turns.
        owner: handles the requests.
    """

    __slots__ = (
        "_decode",
        "_frame_began",
        "_held",
        "_is_busy",
        "_is_finishing",
        "_later",
        "_later_size",
        "_owner",
        "_reader",
        "_reads_no_more",
        "_small_answers",
    )

    def __init__(self, listener: ConnectionKeeper, owner: ConnectionOwner) -> None:
        super().__init__(listener)
        self._owner = owner
        self._small_answers = owner.small_answers
        self._decode: Decode = decode_request
        self._reader: FrameReader[Command] = FrameReader(READ_AT_ONCE, {})
        self._reads_no_more = False
        self._is_finishing = False  # whether waiting requests are left undone
        self._is_busy = False  # whether the owner is in the middle of a command
        self._later: deque[Command | Frame] = deque()  # what was received and waits
        self._later_size = 0  # bytes received for `_later`, until all of it is done
        self._held = 0  # received bytes that the listener has counted
        self._frame_began = 0.0  # when the first byte of the incomplete frame came

    @abstractmethod
    def _refuse(self, why: object, data: bytes = b"") -> None:
        """Close the connection because of bytes that are not a command."""

    def _queue(self, requests: Sequence[Command | Frame], *, is_first: bool) -> None:
        """Let requests wait for a turn, behind those that wait."""
        self._later.extend(requests)
        self._note_received()
        if not is_first:
            return
        if self._turns.is_short or not self._turns.has_time():  # it has its slice, and only that
            self._handle_later()
        else:
            self.handle_waiting()

    def _leave(self, commands: Iterable[Command], size: int) -> None:
        """Queue the commands that the owner has left. The one in progress counts as held, too."""
        self._later.extend(commands)
        self._later_size = size
        self._note_received()
        self._transport.pause_reading()  # the owner wakes it

    def wake(self) -> None:
        """Let the owner have the requests behind one that took long."""
        if self._is_busy:
            self._is_busy = False
            self._handle_later()

    @property
    def received_size(self) -> int:
        """Bytes in memory of the incomplete frame and the waiting requests."""
        return self._reader.kept_size + self._later_size

    def _note_received(self) -> None:
        size = self.received_size
        if size != self._held:
            self._note_held(size)

    def _note_held(self, size: int) -> None:
        if self._connection is not None:
            self._held = size
            self._listener.note_received(self._connection.id, size)

    def handle_waiting(self) -> None:
        """Handle waiting commands for one slice, unless the peer has too many unread answers."""
        if self._connection is None or self._is_unread or self._transport.is_closing():
            return
        if self._outbox.frames:
            self._write_some()
        elif self._has_more:
            self._is_busy = bool(self._owner.received(self._connection, self._slice()))
        if self._later_size and not (self._later or self._is_busy or self._reader.uncut):
            self._later_size = 0
            self._note_received()
        if self._is_busy and not self._outbox.frames:
            self._transport.pause_reading()  # the owner wakes it
        elif self._has_more:
            self._handle_later()
        elif not (self._reads_no_more or self._is_unread or self._transport.is_closing()):
            # The peer was not read while its requests waited: restart its idle time.
            self._last_used = self._frame_began = self._loop.time()
            self._transport.resume_reading()

    @property
    def _has_more(self) -> bool:
        if self._outbox.frames or self._is_finishing:
            return bool(self._outbox.frames)
        return bool(self._later or self._is_busy or self._reader.uncut)

    def _handle_later(self) -> None:
        self._transport.pause_reading()
        # After the answers to the handled commands are sent.
        self._listener.handle_later(cast("HeldConnection", self))

    def _slice(self) -> Iterator[Command]:
        """Yield waiting commands for one slice."""
        end = time.monotonic() + self._listener.slice_seconds  # the loop's clock is in whole ms
        large = 0
        while not (self._is_unread or self._outbox.frames):
            command = self._next_command()
            if command is None:
                return
            if command.code not in self._small_answers:
                large += 1
                if large > _LARGE_AT_ONCE or not self._turns.take_large():
                    return
            self._later.popleft()
            yield command
            if time.monotonic() > end:
                return

    def _next_command(self) -> Command | None:
        """Return the oldest waiting command; None: there is none, or the connection is closed."""
        try:
            if not self._later and self._reader.uncut:
                self._later.extend(self._reader.cut_more())
            if not self._later:
                return None
            oldest = self._later[0]
            if isinstance(oldest, Command):
                return oldest
            command = self._later[0] = self._decode(oldest)
        except FrameError as error:
            self._later.clear()
            self._refuse(error)
            return None
        return command
