"""Measures which brokers are slow: sends avoid these for a while.

Pure: it receives names, seconds and the time. Source: Apache RocketMQ `MQFaultStrategy`, its table.
"""

from bisect import bisect_right

FAILED_SECONDS = 10.0
"""The latency that counts for an attempt without an answer."""
BUSY_SECONDS = 0.55
"""The minimum latency that counts for a "busy" answer."""

#: a latency of this many seconds or more ...
_TOOK_SECONDS = (0.55, 1.8, 3.0, 5.0, 15.0)
#: ... makes sends avoid the broker for this many seconds (one entry more: below the first)
_AWAY_SECONDS = (0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
SLOW_SECONDS = _TOOK_SECONDS[0]
"""From this latency on, a broker is slow."""


class SlowBrokers:
    """The slow or silent brokers, and until when sends avoid them."""

    def __init__(self) -> None:
        #: until when sends avoid each broker that was slow and has not been fast since
        self.until: dict[str, float] = {}

    def note_latency(self, broker_name: str, took_seconds: float, now: float) -> None:
        """Record the latency of a send. A fast one clears the broker's record."""
        away = _AWAY_SECONDS[bisect_right(_TOOK_SECONDS, took_seconds)]
        if away:
            known = self.until.copy()  # an atomic copy: other threads may record meanwhile
            self.until = {name: until for name, until in known.items() if until > now}
            self.until[broker_name] = now + away
        elif self.until:
            self.until.pop(broker_name, None)

    def rank(self, broker_name: str, now: float) -> float:
        """Return 0 for a good broker, or else the seconds for which sends should avoid it."""
        return max(0.0, self.until.get(broker_name, now) - now)
