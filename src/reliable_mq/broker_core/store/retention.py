"""Retention of the log: by age, and by the used share of the disk.

Receives the used share of the disk, the age of the log's files, and readings of two clocks. Returns
how many files to remove, and whether writes must be refused. Touches no file. A file is old if the
wall clock says so and this time was watched; see `watched_time`.
Source: Apache RocketMQ `DefaultMessageStore.CleanCommitLogService`, with its property names.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from reliable_mq.broker_core.store.commit_log import segment_path
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.watched_time import (
    ClockReading,
    WatchedTime,
    first_look,
    is_worth_noting,
    jump_text,
    read,
    text_of,
    unwatched_max,
)

PATH = "config/watchedTime.json"
MANUAL_ROUNDS = 20  # rounds for which one request to delete is valid
_HOUR_MS = 3_600_000


class RetentionRules(NamedTuple):
    """When to remove log files. Ratios between 0 and 1, times in milliseconds.

    `hours`: hours of the day in which old files are removed. `reserved_ms`: age of an old file.
    Above `used_max` old files are removed at any hour. Above `forcibly` younger files are removed,
    too, if `may_force`. Above `warning` writes are refused. `batch_max`: files per round.
    """

    hours: frozenset[int]
    reserved_ms: int
    used_max: float
    forcibly: float
    warning: float
    may_force: bool
    batch_max: int


def parse_hours(text: str) -> frozenset[int]:
    """Return the hours of Apache's deleteWhen, "04" or "04;16".

    Raises:
        ValueError: when one is not an hour.
    """
    hours = frozenset(int(word) for word in text.split(";") if word.strip())
    if not hours <= frozenset(range(24)):
        raise ValueError(f"{text!r} contains a number that is not an hour; use 00 to 23")
    return hours


class DiskSurvey(NamedTuple):
    """Used share of the disk, and last write times of the oldest files (ms).

    It has as many log files as one round may remove, oldest first.
    """

    used: float
    modified_ms: Sequence[int]
    capacity: tuple[int, int] = (0, 0)  # bytes: total, free


def survey(disk: Disk, segment_starts: Sequence[int]) -> DiskSurvey:
    """Survey the disk. May run in another thread."""
    times = [disk.modified_ms(segment_path(first)) for first in segment_starts]
    return DiskSurvey(disk.used_ratio, times, disk.capacity)


class LogRetention:
    """Decides which files to remove now. `is_full` says whether writes are refused.

    Invariant R2: only files older than `reserved_ms` are removed, by the wall clock and by watched
    time. Exception: `may_force` is set and the used share is above `forcibly`.
    """

    def __init__(self, rules: RetentionRules) -> None:
        self.rules = rules
        self.manual_rounds = 0
        self.old_count = 0  # old files among those that were removed last
        self.is_full = False
        self.used = 0.0
        self.capacity = (0, 0)
        self._known: WatchedTime | None = None
        self._noted: WatchedTime | None = None
        self._newest: float | None = None

    def load(self, text: str) -> None:
        """Load the state of the clocks; an unreadable text is ignored."""
        self._known = self._noted = read(text)

    def dump(self) -> str:
        """Return the state of the clocks as text."""
        self._noted = self._known
        return text_of(self._known) if self._known is not None else ""

    def begin(self, newest_ms: int) -> None:
        """Note the store time of the newest message at the start; 0 without messages."""
        self._newest = newest_ms / 1000 if newest_ms else None

    @property
    def held_seconds(self) -> float:
        """How many seconds longer files are kept because the clock jumped."""
        return 0.0 if self._known is None else self._known.held(self.rules.reserved_ms / 1000)

    def check_clocks(self, reading: ClockReading) -> str:
        """Note a reading of the clocks; return a text for people about a jump, or ""."""
        window, earlier = self.rules.reserved_ms / 1000, self._known
        gap = unwatched_max(window)
        self._known = (
            first_look(reading, self._newest, unwatched_max=gap)
            if earlier is None
            else earlier.looked(reading, unwatched_max=gap)
        )
        return jump_text(self._known, earlier, window, clock="the clock", things="files")

    def is_over(self, time_ms: int, now_ms: int) -> bool:
        """Whether a message is older than the retention time, so that it may be given up."""
        if time_ms + self.rules.reserved_ms >= now_ms:
            return False
        known = self._known
        return known is None or time_ms < known.before(self.rules.reserved_ms / 1000) * 1000

    @property
    def is_worth_noting(self) -> bool:
        """Whether the state of the clocks must be saved."""
        return self._known is not None and is_worth_noting(self._known, self._noted)

    def begin_manual(self) -> None:
        """Allow the removal of old files at any hour, for the next rounds."""
        self.manual_rounds = MANUAL_ROUNDS

    def change_rules(self, rules: RetentionRules) -> None:
        """Set new rules, and apply them to the last disk survey."""
        self.rules = rules
        self.is_full = self.used > rules.warning

    def files_to_remove(self, found: DiskSurvey, now_ms: int) -> int:
        """Return how many of the oldest files to remove; call `check_clocks` before.

        Without a call of `check_clocks` no file is old.
        """
        rules = self.rules
        self.used, self.capacity = found.used, found.capacity
        self.is_full = found.used > rules.warning
        is_over = found.used > min(rules.used_max, rules.forcibly)
        is_time = datetime.fromtimestamp(now_ms / 1000).hour in rules.hours  # noqa: DTZ006 - local
        if not (is_time or is_over or self.manual_rounds):
            return 0
        self.manual_rounds = max(0, self.manual_rounds - 1)
        candidates = found.modified_ms[: rules.batch_max]
        self.old_count = 0
        known = self._known
        before_ms = -1.0 if known is None else known.before(rules.reserved_ms / 1000) * 1000
        for modified_ms in candidates:
            if modified_ms > before_ms:
                break
            self.old_count += 1
        if rules.may_force and found.used > rules.forcibly:
            return len(candidates)
        return self.old_count


class Closeable(Protocol):
    """A file that can be closed."""

    def close(self) -> None:
        """Close the file."""


class FileRemoval:
    """Closes and removes forgotten files in another thread.

    If a removal fails, later jobs retry it, at intervals of at least `retry_ms`.
    """

    def __init__(self, disk: Disk, retry_ms: int) -> None:
        self._disk = disk
        self._retry_ms = retry_ms
        self._hanging: list[str] = []
        self._tried_ms = 0

    def job(self, files: Sequence[tuple[Closeable, str]], now_ms: int) -> Callable[[], None]:
        """Return the job that closes and removes the files."""

        def work() -> None:
            paths = [path for _file, path in files]
            if self._hanging and now_ms - self._tried_ms >= self._retry_ms:
                paths, self._hanging = self._hanging + paths, []
                self._tried_ms = now_ms
            for file, _path in files:
                file.close()
            for path in paths:
                try:
                    self._disk.remove(path)
                except OSError:
                    self._hanging.append(path)

        return work


def hours_ms(hours: int) -> int:
    """Return hours as milliseconds."""
    return hours * _HOUR_MS
