"""Counts the bytes that connections keep in memory, and chooses which to close above the limit.

Pure: it receives sizes and returns connections.
"""

from collections import deque
from collections.abc import Callable

Sizes = dict[int, int]

_SHARE_AFTERWARDS = 0.9


class UnreadAnswers:
    """The memory used by unread answers to one peer.

    Answers that are written together stay in memory until their last byte is sent, even after the
    system has taken most of them.
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._total = 0

    def note_written(self, size: int) -> None:
        """Note the number of bytes written together."""
        self._sizes.append(size)
        self._total += size

    def held(self, unsent: int) -> int:
        """Return the bytes in memory when the system has still to take `unsent` bytes."""
        sizes = self._sizes
        while sizes and self._total - sizes[0] >= unsent:
            self._total -= sizes.popleft()
        return max(self._total, unsent)


class HeldBytes:
    """Bytes in memory by connection, the longest holder first.

    Args:
        size_max: limit for all connections together, in bytes; it may change.
        size_now: returns the current size of a connection: noted sizes may be outdated.
    """

    def __init__(self, size_max: int, size_now: Callable[[int], int]) -> None:
        self.size_max = size_max
        self._size_now = size_now
        self._sizes: Sizes = {}
        self._total = 0

    def set_size(self, connection: int, size: int) -> list[int]:
        """Note the size of a connection. Above the limit, return the connections to close.

        These are the connections that hold the most: a peer that is just slow holds little. Closing
        frees a tenth of the limit, because each overflow counts all connections again, which takes
        milliseconds for very many.
        """
        self._set(connection, size)
        if self._total <= self.size_max:
            return []
        for each in list(self._sizes):
            self._set(each, self._size_now(each))
        gone: list[int] = []
        for each in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
            if self._total <= self.size_max * _SHARE_AFTERWARDS:
                break
            self._set(each, 0)
            gone.append(each)
        return gone

    def _set(self, connection: int, size: int) -> None:
        self._total += size - self._sizes.get(connection, 0)
        if size:
            self._sizes[connection] = size
        else:
            self._sizes.pop(connection, None)
