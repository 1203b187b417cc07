"""Damage: stretches of the log in which no valid record lies, though valid ones lie behind them.

Receives where recovery and readers found damage; hands on whether a place is known to be damaged,
so that each is named in the process's log once; refuses to look at the log itself.

Invariant S3: stretches are in the order of the log and do not overlap.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from reliable_mq.errors import InvariantBroken

STRETCHES_MAX = 10_000  # so that a medium that dies fills neither memory nor the process's log


class DamagedRange(NamedTuple):
    """Damage from one log offset to another."""

    begin: int
    end: int


class KnownDamage:
    """The damage that was found; `stretches` is empty as long as the log is whole.

    `sought_from` is the log offset from which on all was looked at when the log was opened, or
    written since.
    """

    def __init__(self) -> None:
        self.stretches: list[DamagedRange] = []
        self.sought_from = 0

    def invariants(self) -> None:
        """See the module's head."""
        if any(one.end > other.begin for one, other in pairwise(self.stretches)):
            raise InvariantBroken(f"S3: damage overlaps: {self.stretches}")

    def covers(self, offset: int) -> bool:
        """Whether a log offset lies in a stretch that is known."""
        at = bisect_right(self.stretches, offset, key=_begin)
        return at > 0 and offset < self.stretches[at - 1].end

    def end_at(self, offset: int) -> int:
        """Return where the known stretch ends that holds a log offset; the next one without."""
        at = bisect_right(self.stretches, offset, key=_begin)
        return max(self.stretches[at - 1].end if at else 0, offset + 1)

    def is_excluded(self, begin: int, end: int) -> bool:
        """Whether it is known that there is no damage between two log offsets."""
        if begin < self.sought_from:
            return False
        if not self.stretches:
            return True
        at = bisect_right(self.stretches, begin, key=_begin)
        is_before = at == 0 or self.stretches[at - 1].end <= begin
        return is_before and (at == len(self.stretches) or end <= self.stretches[at].begin)

    def note(self, begin: int, end: int) -> DamagedRange | None:
        """Note damage; return as much of it as is to be named, None when it is known already.

        Args:
            begin: the log offset where no valid record is.
            end: where one may be again; damage that is known further on ends it.
        """
        if len(self.stretches) == STRETCHES_MAX or self.covers(begin):
            return None
        at = bisect_right(self.stretches, begin, key=_begin)
        if at < len(self.stretches):
            end = min(end, self.stretches[at].begin)
        self.stretches.insert(at, DamagedRange(begin, end))
        return self.stretches[at]

    def forget_before(self, log_start: int) -> None:
        """Forget the stretches of segments that are gone."""
        self.stretches = [stretch for stretch in self.stretches if stretch.end > log_start]


def _begin(stretch: DamagedRange) -> int:
    return stretch.begin
