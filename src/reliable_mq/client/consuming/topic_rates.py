"""How fast a member of a group pulls and handles the messages of a topic.

For administrators: ten-second sums for a minute, and ten-minute sums for an hour. Source: Apache
RocketMQ `ConsumerStatsManager`, `ConsumeStatus`.
"""

from collections import defaultdict, deque

MINUTE, HOUR = 60.0, 3600.0
_PARTS = 6  # of a period
_Sums = defaultdict[str, float]
"""Counts in a period of time, by name."""


class _Window:
    """The sums of the last six sixths of a period, by the time when each began."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._parts: deque[tuple[float, _Sums]] = deque()

    def add(self, sums: _Sums, begun: float) -> None:
        part = self._seconds / _PARTS
        if not self._parts or begun - self._parts[-1][0] >= part:
            self._parts.append((begun, _Sums(float)))
        _add(self._parts[-1][1], sums)
        self._drop(begun)

    def total(self, now: float) -> _Sums:
        self._drop(now)
        total = _Sums(float)
        for _, sums in self._parts:
            _add(total, sums)
        return total

    def _drop(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] >= self._seconds:
            self._parts.popleft()


def _add(total: _Sums, more: _Sums) -> None:
    for name, value in more.items():
        total[name] += value


class TopicRates:
    """The rates of one topic. All times are in seconds.

    Args:
        now: when counting begins.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._sums = _Sums(float)  # since `_since`
        self._since = now
        self._minute = _Window(MINUTE)
        self._hour = _Window(HOUR)

    def pulled(self, messages: int, took: float, now: float) -> None:
        """Count a pull that found messages."""
        if now - self._since >= MINUTE / _PARTS:
            self._roll(now)
        self._sums["pulls"] += 1
        self._sums["pulled"] += messages
        self._sums["pull_seconds"] += took

    def handled(self, consumed: int, failed: int, took: float, now: float) -> None:
        """Count a handler call with its consumed and failed messages."""
        if now - self._since >= MINUTE / _PARTS:
            self._roll(now)
        self._sums["calls"] += 1
        self._sums["consumed"] += consumed
        self._sums["failed"] += failed
        self._sums["call_seconds"] += took

    def status(self, now: float) -> dict[str, float]:
        """Return the rates of the last minute, under Apache's names; times in milliseconds.

        In a minute without handler calls, the handling time is that of the last hour.
        """
        self._roll(now)
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

    def _roll(self, now: float) -> None:
        for window in (self._minute, self._hour):
            window.add(self._sums, self._since)
        self._sums, self._since = _Sums(float), now
