"""The comparison of a slave's log with its master's, before the slave copies.

Receives the bytes that the master sends from an offset that the slave has. Says where they differ
first. A slave that finds a difference has a log that its master does not have.
"""

from collections.abc import Callable

from reliable_mq.errors import ReplicationError
from reliable_mq.replication.ha_frames import Transfer

WINDOW = 64 * 1024
"""Bytes at the end of the slave's log that are compared first."""
_WIDER = 16  # times as many are compared next, when the first ones differ


class LogComparison:
    """Compares the bytes of transfers with the slave's log from `begin` to `end`.

    Args:
        begin, end: log offsets.
        read: returns so many bytes of the slave's log from an offset.
    """

    def __init__(self, begin: int, end: int, read: Callable[[int, int], bytes]) -> None:
        self.at = begin  # the offset of the next byte
        self.end = end
        self.differs_at = -1  # the first byte that is not the same; -1: none is known
        self._read = read

    @property
    def is_done(self) -> bool:
        """Whether the result is known."""
        return self.differs_at >= 0 or self.at >= self.end

    def take(self, transfer: Transfer) -> Transfer | None:
        """Compare a transfer; return its part behind `end`; None: it has none.

        Raises:
            ReplicationError: when it does not continue the one before.
        """
        offset, data = transfer
        if offset != self.at and self.differs_at < 0:
            raise ReplicationError(
                f"the master sent offset {offset}; this slave has asked for {self.at}"
            )
        common = data[: max(0, self.end - offset)]
        if self.differs_at < 0 and common:
            own = self._read(offset, len(common))
            if own != common:
                self.differs_at = offset + _first_difference(own, common)
        self.at = offset + len(data)
        rest = data[len(common) :]
        return Transfer(offset + len(common), rest) if rest else None


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the place of the first byte that differs; the shorter length if none does."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def comparison_begins(lowest: int, last_record: int, end: int) -> list[int]:
    """Return where to begin to compare, one after another, until a common record is found.

    The first window has the slave's last record; each next one is larger.

    Args:
        lowest: the first offset that both logs have.
        last_record: where the slave's last record begins.
        end: where the log that is compared ends.
    """
    begins: list[int] = []
    size = max(WINDOW, end - last_record)
    while not begins or begins[-1] > lowest:
        begins.append(max(lowest, end - size))
        size *= _WIDER
    return begins
