"""A frame that is too long to be made in one go: its pieces are made when they are written.

Receives the front of a frame, and what makes the rest. Knows its length from the begin. The pieces
of an answer with 4 MiB of messages are read from the log one by one: nobody waits for all of them.
"""

import struct
from collections.abc import Iterator

from reliable_mq.errors import FrameError
from reliable_mq.wire.frame import LENGTH_MAX

PIECE_SIZE = 64 * 1024
LONG_SIZE_MIN = 5 * PIECE_SIZE
"""Only bodies with more bytes are made in pieces; a usual pull has fewer. Whoever writes frames
knows from this that shorter ones are `bytes`."""
_LENGTH = struct.Struct(">i")


class LongBody:
    """The body of an answer, as pieces that are made later.

    Args:
        size: bytes of all pieces together.
        pieces: gives them, once.
    """

    __slots__ = ("pieces", "size")

    def __init__(self, size: int, pieces: Iterator[bytes]) -> None:
        self.size = size
        self.pieces = pieces

    def __len__(self) -> int:
        return self.size


class LongFrame:
    """A whole frame, whose pieces come once.

    Args:
        front: the frame of the same answer without a body.
        body: its body.

    Raises:
        FrameError: when the frame would be longer than 16 MiB.
    """

    __slots__ = ("_body", "_front", "_size")

    def __init__(self, front: bytes, body: LongBody) -> None:
        length = _LENGTH.unpack_from(front)[0] + body.size
        if length > LENGTH_MAX:
            raise FrameError(f"a frame of {length} bytes; {LENGTH_MAX} are allowed")
        self._front = _LENGTH.pack(length) + front[_LENGTH.size :]
        self._body = body
        self._size = len(front) + body.size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""
        yield self._front
        yield from self._body.pieces

    def __bytes__(self) -> bytes:
        """Return the frame in one piece; no piece must have been taken before."""
        return b"".join(self)


AnyFrame = bytes | LongFrame
"""What is sent to a peer."""
