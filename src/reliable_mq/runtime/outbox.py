"""Answers to one peer that are written piece by piece, over several turns of the loop.

To make and write 4 MiB takes some milliseconds, and so does a write of 4 MiB to a socket. Other
peers must not wait for that. Receives frames. Returns their pieces in order.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from reliable_mq.errors import StoreError
from reliable_mq.wire.long_frame import PIECE_SIZE, AnyFrame


class Outbox:
    """Frames that are not written yet.

    Invariant L12: a frame whose first piece was taken is taken to its end, before another one.

    Attributes:
        frames: what is not written yet; the first one may be under way. Others only read it.
        held: bytes in memory of the rest. A long frame is not in memory.
    """

    __slots__ = ("_pieces", "_rest", "frames", "held")

    def __init__(self) -> None:
        self.frames: deque[AnyFrame] = deque()
        self._pieces: Iterator[bytes | memoryview] = iter(())
        self._rest = 0  # bytes of the first frame that were not taken; 0: it was not begun
        self.held = 0

    def put(self, frames: Iterable[AnyFrame]) -> None:
        """Add frames behind the others."""
        for frame in frames:
            self.frames.append(frame)
            if isinstance(frame, bytes):
                self.held += len(frame)

    def take(self) -> bytes | memoryview:
        """Return the next piece.

        Raises:
            StoreError: when the rest of a frame cannot be read, as that part of the log is gone.
        """
        frame = self.frames[0]
        if not self._rest:
            self._rest = len(frame)
            self._pieces = _cut(frame) if isinstance(frame, bytes) else iter(frame)
        piece = next(self._pieces, b"")
        if not 0 < len(piece) <= self._rest:
            raise StoreError(f"{self._rest} bytes of an answer are gone")
        self._rest -= len(piece)
        if isinstance(frame, bytes):
            self.held -= len(piece)
        if not self._rest:
            self.frames.popleft()
        return piece


def _cut(frame: bytes) -> Iterator[memoryview]:
    view = memoryview(frame)
    for at in range(0, len(view), PIECE_SIZE):
        yield view[at : at + PIECE_SIZE]
