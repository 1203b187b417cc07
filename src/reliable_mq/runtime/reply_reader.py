"""The one reply that a connection is read for, by who has one request on its way at a time.

Receives pieces of the stream; hands back the reply. Requests of the peer, and replies to questions
that nobody waits for any more, are passed over.
"""

from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command, decode_reply
from reliable_mq.wire.frame import FrameReader

_OPAQUE_MASK = 0x7FFFFFFF


class ReplyReader:
    """Numbers the requests of a connection, and finds their replies.

    C10: what is handed back answers the newest request, whose number the protocol can say.
    """

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._opaque = 0

    def next_opaque(self) -> int:
        """Return the number of the next request; its reply is what `feed` looks for."""
        self._opaque = self._opaque + 1 & _OPAQUE_MASK
        return self._opaque

    def feed(self, data: bytes) -> Command | None:
        """Return the reply once it is complete; `data` is what the connection was read to.

        Raises:
            ConnectionResetError: when that is nothing: the peer has ended it.
            FrameError: when it is no command.
        """
        if not data:
            raise ConnectionResetError("it closed the connection")
        for frame in self._reader.feed(data):
            command = decode_reply(frame)
            if command.is_reply and command.opaque == self._opaque:
                return command
        return None

    def invariants(self) -> None:
        """Hold that the newest request has a number that the protocol can say."""
        if not 0 <= self._opaque <= _OPAQUE_MASK:
            raise InvariantBroken(f"C10: a request has the number {self._opaque}")
