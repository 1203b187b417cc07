"""Position files: one line per message, `queue offset id number`, in the order it was noted.

A message's number is `thread * THREAD_STRIDE + n`, n counting up in its thread, and no number is
handed to `send` twice; it stands in decimal at the beginning of the body. `NumberedBody.java` and
`PositionFile.java` do the same.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

THREAD_STRIDE = 10**12
NUMBER_DIGITS = 19


class Position(NamedTuple):
    """Where one message stands: what a position file says in one line."""

    queue_id: int
    queue_offset: int
    message_id: str
    number: int

    @property
    def thread(self) -> int:
        """The thread that sent it."""
        return self.number // THREAD_STRIDE

    def line(self) -> str:
        """Return the line, with its end."""
        return f"{self.queue_id} {self.queue_offset} {self.message_id} {self.number}\n"


def numbered_body(number: int, size: int) -> bytes:
    """Return a body of `size` bytes that carries `number`."""
    return f"{number:0{NUMBER_DIGITS}d}".encode().ljust(size, b"x")


def number_of(body: bytes) -> int:
    """Return the number that a body carries."""
    return int(body[:NUMBER_DIGITS])


def read_positions(path: Path) -> Iterator[Position]:
    """Yield the lines of a position file; a last line that is not finished is left out."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                queue_id, queue_offset, message_id, number = line.split()
                yield Position(int(queue_id), int(queue_offset), message_id, int(number))
