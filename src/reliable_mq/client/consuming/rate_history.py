"""The counts of a topic in the last minute and the last hour, and the rates that follow from them.

A member of a group counts its pulls and handler calls (`consumer_group.TopicRates`). For
administrators there are ten-second sums for a minute, and ten-minute sums for an hour.
Source: Apache RocketMQ `ConsumerStatsManager`, `ConsumeStatus`.
"""

from collections import defaultdict, deque

MINUTE, HOUR = 60.0, 3600.0
_PARTS = 6  # of a period
PART_SECONDS = MINUTE / _PARTS
"""Counts are added to a history after so many seconds."""
Sums = defaultdict[str, float]
"""Counts in a period of time, by name."""


class _Window:
    """The sums of the last six sixths of a period, by the time when each began."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._parts: deque[tuple[float, Sums]] = deque()

    def add(self, sums: Sums, begun: float) -> None:
        part = self._seconds / _PARTS
        if not self._parts or begun - self._parts[-1][0] >= part:
            self._parts.append((begun, Sums(float)))
        _add(self._parts[-1][1], sums)
        self._drop(begun)

    def total(self, now: float) -> Sums:
        self._drop(now)
        total = Sums(float)
        for _, sums in self._parts:
            _add(total, sums)
        return total

    def _drop(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] >= self._seconds:
            self._parts.popleft()


def _add(total: Sums, more: Sums) -> None:
    for name, value in more.items():
        total[name] += value


class RateHistory:
    """The counts of one topic, and its rates. All times are in seconds.

    Args:
        now: when counting begins.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._minute = _Window(MINUTE)
        self._hour = _Window(HOUR)

    def add(self, sums: Sums, since: float) -> None:
        """Add what was counted from `since` until now."""
        for window in (self._minute, self._hour):
            window.add(sums, since)

    def status(self, now: float) -> dict[str, float]:
        """Return the rates of the last minute, under Apache's names; times in milliseconds.

        In a minute without handler calls, the handling time is that of the last hour.
        """
        minute, hour = self._minute.total(now), self._hour.total(now)
        seconds = max(1.0, min(MINUTE, now - self._began))
        calls = minute if minute["calls"] else hour
        return {
            "consumeFailedMsgs": int(hour["failed"]),
            "consumeFailedTPS": minute["failed"] / seconds,
            "consumeOKTPS": minute["consumed"] / seconds,
            "consumeRT": 1000 * calls["call_seconds"] / max(1, calls["calls"]),
            "pullRT": 1000 * minute["pull_seconds"] / max(1, minute["pulls"]),
            "pullTPS": minute["pulled"] / seconds,
        }
