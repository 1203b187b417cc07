"""Every byte of a master's log, as it was last: written at the medium, cut by crashes.

Copies are compared with it, and what is read from them. It forgets nothing that expires.
"""

from reliable_mq.broker_core.store.commit_log import CommitLog

_PART = 64 * 1024


class Chronicle:
    """The bytes of a log from its first offset on.

    `cuts` counts how often a crash has taken the end of the log; `before` are its bytes as they
    were before each of them.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self.before: list[bytes] = []
        self.cuts = 0

    @property
    def end(self) -> int:
        """Where the log ends."""
        return len(self._data)

    def wrote(self, at: int, data: bytes) -> None:
        """Note what was written at an offset."""
        rest = at - len(self._data)
        if rest > 0:
            self._data += bytes(rest)
        self._data[at : at + len(data)] = data

    def opened(self, log: CommitLog) -> None:
        """Note what a start has found: less than was written, or a part of the last write."""
        if log.end < self.end:
            self.before.append(bytes(self._data))
            self.cuts += 1
            del self._data[log.end :]
        for offset, data in parts_of(log, max(self.end, log.start)):
            self.wrote(offset, data)

    def is_of_old_life(self, offset: int, data: bytes) -> bool:
        """Whether the log had these bytes there, before it lost its end."""
        return any(data == each[offset : offset + len(data)] for each in self.before)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset, as far as there are any."""
        return bytes(self._data[offset : offset + size])


def parts_of(log: CommitLog, begin: int) -> list[tuple[int, bytes]]:
    """Return what is written of a log from an offset on, in parts."""
    found: list[tuple[int, bytes]] = []
    at = begin
    while at < log.written:
        data = log.read(at, min(_PART, log.written - at))
        found.append((at, data))
        at += len(data)
    return found
