"""How much of the log is safe: what the file system has of it, and what is on the medium."""

from collections.abc import Sequence

from tests.simulation.facts import Entry, Violation
from tests.simulation.watched_disk import WatchedDisk


class SafeLog:
    """Counts the entries that outlive a crash.

    Args:
        disk: how far the log is written and synced.
        log: the model's entries.
        is_sync_flush: whether an acknowledgement means that the entry is on the medium.
    """

    def __init__(self, disk: WatchedDisk, log: Sequence[Entry], *, is_sync_flush: bool) -> None:
        self._disk = disk
        self._log = log
        self._is_sync_flush = is_sync_flush
        self._written = 0  # so many the file system has, and the medium
        self._synced = 0
        self._must_survive = 0

    @property
    def count(self) -> int:
        """How many entries of the log are as safe as the flush type promises."""
        self._look()
        return self._synced if self._is_sync_flush else self._written

    def _look(self) -> None:
        self._written = self._count_before(self._disk.log_written, self._written)
        self._synced = self._count_before(self._disk.log_synced, self._synced)

    def _count_before(self, log_end: int, number: int) -> int:
        while number < len(self._log) and self._log[number].log_end <= log_end:
            number += 1
        return number

    def down(self, *, is_power_loss: bool) -> None:
        """Note that the broker is gone."""
        self._look()
        safe = self._synced if is_power_loss else self._written
        self._must_survive = self._written = safe
        if is_power_loss:  # after a kill the system still has what is not on the medium
            self._disk.log_opened(self._log[safe - 1].log_end if safe else 0)

    def opened(self, count: int) -> None:
        """Check how many entries a broker has found after its end."""
        if not self._must_survive <= count <= len(self._log):
            raise Violation(
                f"after a crash the log has {count} of {len(self._log)} messages, "
                f"{self._must_survive} were safe"
            )
        self._written = self._synced = count
