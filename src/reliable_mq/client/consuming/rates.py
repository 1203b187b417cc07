"""Rates of a member: how fast it pulls and handles messages of each topic, for administrators.

Ten-second sums are kept for a minute, and ten-minute sums for an hour.
Source: Apache RocketMQ `ConsumerStatsManager`, `ConsumeStatus`.
"""

from collections import deque

MINUTE, HOUR = 60.0, 3600.0
_PARTS = 6


class _Sums:
    """Counts in a period of time."""

    __slots__ = ("call_seconds", "calls", "consumed", "failed", "pull_seconds", "pulled", "pulls")

    def __init__(self) -> None:
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_seconds = self.call_seconds = 0.0

    def add(self, other: "_Sums") -> None:
        for name in _Sums.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Window:
    """The sums of the last six sixths of a period, by the time when each began."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._parts: deque[tuple[float, _Sums]] = deque()

    def add(self, sums: _Sums, begun: float) -> None:
        part = self._seconds / _PARTS
        if not self._parts or begun - self._parts[-1][0] >= part:
            self._parts.append((begun, _Sums()))
        self._parts[-1][1].add(sums)
        self._drop(begun)

    def total(self, now: float) -> _Sums:
        self._drop(now)
        total = _Sums()
        for _, sums in self._parts:
            total.add(sums)
        return total

    def _drop(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] >= self._seconds:
            self._parts.popleft()


class TopicRates:
    """The rates of one topic. All times are in seconds.

    Args:
        now: when counting begins.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._sums = _Sums()  # since `_since`
        self._since = now
        self._minute = _Window(MINUTE)
        self._hour = _Window(HOUR)

    def pulled(self, messages: int, took: float, now: float) -> None:
        """Count a pull that found messages."""
        if now - self._since >= MINUTE / _PARTS:
            self._roll(now)
        self._sums.pulls += 1
        self._sums.pulled += messages
        self._sums.pull_seconds += took

    def handled(self, consumed: int, failed: int, took: float, now: float) -> None:
        """Count a handler call with its consumed and failed messages."""
        if now - self._since >= MINUTE / _PARTS:
            self._roll(now)
        self._sums.calls += 1
        self._sums.consumed += consumed
        self._sums.failed += failed
        self._sums.call_seconds += took

    def status(self, now: float) -> dict[str, float]:
        """Return the rates of the last minute, under Apache's names; times in milliseconds.

        In a minute without handler calls, the handling time is that of the last hour.
        """
        self._roll(now)
        minute, hour = self._minute.total(now), self._hour.total(now)
        seconds = max(1.0, min(MINUTE, now - self._began))
        calls = minute if minute.calls else hour
        return {
            "consumeFailedMsgs": hour.failed,
            "consumeFailedTPS": minute.failed / seconds,
            "consumeOKTPS": minute.consumed / seconds,
            "consumeRT": 1000 * calls.call_seconds / max(1, calls.calls),
            "pullRT": 1000 * minute.pull_seconds / max(1, minute.pulls),
            "pullTPS": minute.pulled / seconds,
        }

    def _roll(self, now: float) -> None:
        for window in (self._minute, self._hour):
            window.add(self._sums, self._since)
        self._sums, self._since = _Sums(), now


class Rates:
    """The rates of all topics of one member."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRates] = {}

    def of(self, topic: str, now: float) -> TopicRates:
        """Return the rates of a topic."""
        rates = self._topics.get(topic)
        if rates is None:
            rates = self._topics[topic] = TopicRates(now)
        return rates
