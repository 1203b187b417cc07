"""Damage: ranges of the log without a valid record, although valid records follow.

Receives the damage that recovery and readers find. Answers whether a place is known to be damaged,
so that each damage is logged only once. Does not read the log.

Invariant S3: stretches are in the order of the log and do not overlap.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from reliable_mq.errors import InvariantBroken

STRETCHES_MAX = 10_000  # limits memory and log lines when a medium dies


class DamagedRange(NamedTuple):
    """Damage between two log offsets."""

    begin: int
    end: int


class KnownDamage:
    """The damage that was found; `stretches` is empty while the log is whole.

    All bytes from log offset `sought_from` on were checked when the log was opened, or were written
    later.
    """

    def __init__(self) -> None:
        self.stretches: list[DamagedRange] = []
        self.sought_from = 0

    def invariants(self) -> None:
        """S3; see the head of the module."""
        if any(one.end > other.begin for one, other in pairwise(self.stretches)):
            raise InvariantBroken(f"S3: damage overlaps: {self.stretches}")

    def covers(self, offset: int) -> bool:
        """Whether a log offset is in a known damaged range."""
        at = bisect_right(self.stretches, offset, key=_begin)
        return at > 0 and offset < self.stretches[at - 1].end

    def end_at(self, offset: int) -> int:
        """Return the end of the known range that holds a log offset; without one, offset + 1."""
        at = bisect_right(self.stretches, offset, key=_begin)
        return max(self.stretches[at - 1].end if at else 0, offset + 1)

    def is_excluded(self, begin: int, end: int) -> bool:
        """Whether it is certain that there is no damage between two log offsets."""
        if begin < self.sought_from:
            return False
        if not self.stretches:
            return True
        at = bisect_right(self.stretches, begin, key=_begin)
        is_before = at == 0 or self.stretches[at - 1].end <= begin
        return is_before and (at == len(self.stretches) or end <= self.stretches[at].begin)

    def note_damage(self, begin: int, end: int) -> DamagedRange | None:
        """Note damage; return the part that must be logged, or None when it is known already.

        Args:
            begin: the log offset without a valid record.
            end: where a valid record may begin again; the next known damage ends the range earlier.
        """
        if len(self.stretches) == STRETCHES_MAX or self.covers(begin):
            return None
        at = bisect_right(self.stretches, begin, key=_begin)
        if at < len(self.stretches):
            end = min(end, self.stretches[at].begin)
        self.stretches.insert(at, DamagedRange(begin, end))
        return self.stretches[at]

    def forget_before(self, log_start: int) -> None:
        """Forget the damage in removed segments."""
        self.stretches = [stretch for stretch in self.stretches if stretch.end > log_start]


def _begin(stretch: DamagedRange) -> int:
    return stretch.begin
