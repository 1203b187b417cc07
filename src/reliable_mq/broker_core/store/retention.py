"""How long messages are kept: by time, and by how full the disk is.

Receives how full the disk is, how old the log's files are, and looks at two clocks; hands on how
many files go, and whether writes are to be refused; refuses to touch a file. A file is old when the
clock says so and that time was watched, see `watched_time`.
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
MANUAL_ROUNDS = 20  # how many rounds one request to delete holds for
_HOUR_MS = 3_600_000


class RetentionRules(NamedTuple):
    """When files of the log go. Ratios between 0 and 1, times in milliseconds.

    `hours` are those of the day in which old files go; `reserved_ms` is how old that is. Above
    `used_max` old files go at any hour; above `forcibly` even younger ones, when `may_force`;
    above `warning` nothing is written any more. `batch_max` files go in one round.
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
        ValueError: when one is no hour.
    """
    hours = frozenset(int(word) for word in text.split(";") if word.strip())
    if not hours <= frozenset(range(24)):
        raise ValueError(f"{text!r} names an hour that no day has")
    return hours


class DiskSurvey(NamedTuple):
    """What a look at the disk found: how full it is, and when the oldest files were written (ms).

    Of the log's files as many as one round may remove, oldest first.
    """

    used: float
    modified_ms: Sequence[int]
    capacity: tuple[int, int] = (0, 0)  # bytes: all, and free


def survey(disk: Disk, segment_starts: Sequence[int]) -> DiskSurvey:
    """Look at the disk. May run in another thread."""
    times = [disk.modified_ms(segment_path(first)) for first in segment_starts]
    return DiskSurvey(disk.used_ratio, times, disk.capacity)


class LogRetention:
    """What goes now. `is_full` says whether writes are refused.

    Invariant R2: only files older than `reserved_ms` go, by the clock and by the time that was
    watched, unless `may_force` allows others and the disk is fuller than `forcibly`.
    """

    def __init__(self, rules: RetentionRules) -> None:
        self.rules = rules
        self.manual_rounds = 0
        self.old_count = 0  # how many of the files that went last were older than `reserved_ms`
        self.is_full = False
        self.used = 0.0
        self.capacity = (0, 0)
        self._known: WatchedTime | None = None
        self._noted: WatchedTime | None = None
        self._newest: float | None = None

    def load(self, text: str) -> None:
        """Take what was known of the clocks; what does not read says nothing."""
        self._known = self._noted = read(text)

    def dump(self) -> str:
        """Return what is known of the clocks."""
        self._noted = self._known
        return text_of(self._known) if self._known is not None else ""

    def begin(self, newest_ms: int) -> None:
        """Note when the newest message was stored that was there at the start; 0: there is none."""
        self._newest = newest_ms / 1000 if newest_ms else None

    @property
    def held_seconds(self) -> float:
        """For how much longer than they should files are kept, because the clock jumped."""
        return 0.0 if self._known is None else self._known.held(self.rules.reserved_ms / 1000)

    def look(self, reading: ClockReading) -> str:
        """Note a look at the clocks; return what a person is to be told of it, or ""."""
        window, earlier = self.rules.reserved_ms / 1000, self._known
        gap = unwatched_max(window)
        self._known = (
            first_look(reading, self._newest, unwatched_max=gap)
            if earlier is None
            else earlier.looked(reading, unwatched_max=gap)
        )
        return jump_text(self._known, earlier, window, clock="the clock", things="files")

    def is_over(self, time_ms: int, now_ms: int) -> bool:
        """Whether a message of a time is older than files are kept, so that it may be given up."""
        if time_ms + self.rules.reserved_ms >= now_ms:
            return False
        known = self._known
        return known is None or time_ms < known.before(self.rules.reserved_ms / 1000) * 1000

    @property
    def is_worth_noting(self) -> bool:
        """Whether what is known of the clocks is to be written down."""
        return self._known is not None and is_worth_noting(self._known, self._noted)

    def begin_manual(self) -> None:
        """Let old files go at any hour, for the next rounds."""
        self.manual_rounds = MANUAL_ROUNDS

    def change_rules(self, rules: RetentionRules) -> None:
        """Go on with other rules, also for what the last look at the disk found."""
        self.rules = rules
        self.is_full = self.used > rules.warning

    def judge(self, found: DiskSurvey, now_ms: int) -> int:
        """Return how many of the oldest files go, after a look at the clocks.

        Without a look no file is old.
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
    """A file that is let go of."""

    def close(self) -> None:
        """Let go of it."""


class FileRemoval:
    """Files that nobody knows any more, to be closed and removed in another thread.

    One that cannot be removed is tried again with each later call, `retry_ms` apart.
    """

    def __init__(self, disk: Disk, retry_ms: int) -> None:
        self._disk = disk
        self._retry_ms = retry_ms
        self._hanging: list[str] = []
        self._tried_ms = 0

    def job(self, files: Sequence[tuple[Closeable, str]], now_ms: int) -> Callable[[], None]:
        """Return the work; it returns when the files are gone."""

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
