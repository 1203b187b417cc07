"""Finds the reply on a connection that has one request in flight at a time.

It receives pieces of the stream, and returns the reply. It skips requests of the peer, and replies
to requests that have timed out.
"""

from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command, decode_reply
from reliable_mq.wire.frame import FrameReader

_OPAQUE_MASK = 0x7FFFFFFF


class ReplyReader:
    """Numbers the requests of a connection, and finds their replies.

    C10: a returned reply answers the newest request. Its number fits the protocol's 32 bits.
    """

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._opaque = 0

    def next_opaque(self) -> int:
        """Return the number of the next request. `feed` then looks for the reply to it."""
        self._opaque = self._opaque + 1 & _OPAQUE_MASK
        return self._opaque

    def feed(self, data: bytes) -> Command | None:
        """Return the reply when it is complete. `data` are the bytes of the last read.

        Raises:
            ConnectionResetError: when `data` is empty: the peer has ended the connection.
            FrameError: when the bytes are not a command.
        """
        if not data:
            raise ConnectionResetError("it closed the connection")
        for frame in self._reader.feed(data):
            command = decode_reply(frame)
            if command.is_reply and command.opaque == self._opaque:
                return command
        return None

    def invariants(self) -> None:
        """Check that the number of the newest request fits the protocol."""
        if not 0 <= self._opaque <= _OPAQUE_MASK:
            raise InvariantBroken(f"C10: a request has the number {self._opaque}")
