"""How many bytes connections make a process keep, and which of them have to go when it is too much.

Pure: sizes in, connections out.
"""

from collections import deque
from collections.abc import Callable

Sizes = dict[int, int]

_SHARE_AFTERWARDS = 0.9


class UnreadAnswers:
    """What answers to one peer keep in memory until the peer has read them.

    Answers that are written together stay in memory until their last byte has left, also when the
    system has taken most of them.
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._total = 0

    def wrote(self, size: int) -> None:
        """Note how many bytes were written together."""
        self._sizes.append(size)
        self._total += size

    def held(self, unsent: int) -> int:
        """Return how many bytes are in memory while the system has not taken `unsent` of them."""
        sizes = self._sizes
        while sizes and self._total - sizes[0] >= unsent:
            self._total -= sizes.popleft()
        return max(self._total, unsent)


class HeldBytes:
    """Bytes by connection; who holds some longest stands first among those that hold as many.

    Args:
        size_max: of all connections together, in bytes.
        size_now: returns what a connection holds now: sizes may have shrunk since they were noted.
    """

    def __init__(self, size_max: int, size_now: Callable[[int], int]) -> None:
        self._size_max = size_max
        self._size_now = size_now
        self._sizes: Sizes = {}
        self._total = 0

    def note(self, connection: int, size: int) -> list[int]:
        """Note what a connection holds; return those that must be closed when all hold too much.

        Those are the ones that hold the most: somebody slow holds little. A tenth is free
        afterwards, because all are counted anew, which takes milliseconds for very many.
        """
        self._set(connection, size)
        if self._total <= self._size_max:
            return []
        for each in list(self._sizes):
            self._set(each, self._size_now(each))
        gone: list[int] = []
        for each in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
            if self._total <= self._size_max * _SHARE_AFTERWARDS:
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
