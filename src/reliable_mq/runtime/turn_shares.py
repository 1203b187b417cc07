"""What one turn of the event loop may spend on the peers of its listeners.

Knows times and counts; no connection and no bytes. Who asks for little must not wait for the work
that others have sent.
"""

import asyncio
import time
from typing import NamedTuple

_LARGE_IN_TURN = 32  # requests with large answers


class Shares(NamedTuple):
    """What a turn of the loop may spend, in seconds.

    Attributes:
        turn: on connections with waiting requests.
        slice: on one of these, while it is alone.
        shared_slice: on one of these, while others wait.
        reads: on reads that bring more than one request.
        large: until it begins no more requests with large answers. One table may take as much work
            as many pulls.
        works: on requests that are handled in steps.
        written: bytes of answers that are written piece by piece.
    """

    turn: float
    slice: float
    shared_slice: float
    reads: float
    large: float
    works: float
    written: int


# A peer that asks for little waits for one or two turns. So turns are short while one peer sends
# single requests and another one sends more. Else longer turns save work.
_LONG_TURN = Shares(
    turn=0.001,
    slice=0.001,
    shared_slice=0.0005,
    reads=0.0005,
    large=0.001,
    works=0.001,
    written=1024 * 1024,
)
_SHORT_TURN = Shares(
    turn=0.00025,
    slice=0.00025,
    shared_slice=0.000125,
    reads=0.000125,
    large=0.00025,
    works=0.00015,
    written=128 * 1024,
)
_LATELY_SECONDS = 0.05  # after a single request


class TurnShares:
    """The shares of the turns of one event loop; its listeners have them together.

    Attributes:
        many_from: the last peer that sent several requests at once.
        single_at: when another one sent a single request, by the monotonic clock.
        written: bytes of pieces that were written in this turn.
    """

    def __init__(self) -> None:
        self.many_from: object | None = None
        self.single_at = 0.0
        self._large_left = _LARGE_IN_TURN
        self._large_end = 0.0  # after this time, the turn begins no other large request
        self._is_read_timed = False  # whether this loop turn has a time for reads
        self._read_end = 0.0  # after this time, what else is read waits for a turn
        self.written = 0

    @property
    def is_short(self) -> bool:
        """Whether somebody has sent a single request lately."""
        return time.monotonic() - self.single_at < _LATELY_SECONDS

    @property
    def now(self) -> Shares:
        """What a turn may spend now."""
        return _SHORT_TURN if self.is_short else _LONG_TURN

    def take_large(self) -> bool:
        """Whether this loop turn may begin one more request with a large answer. Counts it."""
        if self._large_left == _LARGE_IN_TURN:
            asyncio.get_running_loop().call_soon(self._refill)
            self._large_end = time.monotonic() + self.now.large
        elif not self._large_left or time.monotonic() >= self._large_end:
            return False
        self._large_left -= 1
        return True

    def _refill(self) -> None:
        self._large_left = _LARGE_IN_TURN

    def has_time(self) -> bool:
        """Whether this loop turn may handle more of what it reads, besides single requests."""
        if self._is_read_timed:
            return time.monotonic() < self._read_end
        self._is_read_timed = True
        self._read_end = time.monotonic() + self.now.reads
        asyncio.get_running_loop().call_soon(self._end_reads)
        return True

    def _end_reads(self) -> None:
        self._is_read_timed = False

    def note_written(self, size: int) -> None:
        """Note that so many bytes of an answer were written, and more are to come."""
        if not self.written:
            asyncio.get_running_loop().call_soon(self._end_writes)
        self.written += size

    def _end_writes(self) -> None:
        self.written = 0

    @property
    def may_write(self) -> bool:
        """Whether this loop turn may write another piece."""
        return self.written < self.now.written

    @property
    def is_spent(self) -> bool:
        """Whether this loop turn should end: it has begun many large requests, or written much."""
        return not self._large_left or not self.may_write
