"""How many bytes connections make a process keep, and which of them have to go when it is too much.

Pure: sizes in, connections out.
"""

from collections.abc import Callable

Sizes = dict[int, int]


class HeldBytes:
    """Bytes by connection; who holds some longest stands first.

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
        """Note what a connection holds; return those that must be closed, so that all fit again.

        Those are the ones that have held something for the longest time: who makes progress lets go
        of it soon.
        """
        self._set(connection, size)
        if self._total <= self._size_max:
            return []
        for each in list(self._sizes):
            self._set(each, self._size_now(each))
        gone: list[int] = []
        for each in list(self._sizes):
            if self._total <= self._size_max:
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
