"""Which brokers are slow just now, by how long they took: sends turn to others for a while.

Pure: it takes names, seconds and the time. Source: Apache RocketMQ `MQFaultStrategy`, its table.
"""

from bisect import bisect_right

FAILED_SECONDS = 10.0
"""A try without an answer counts as one that took so long."""
BUSY_SECONDS = 0.55
"""An answer that says "busy" counts as one that took at least so long."""

#: an answer that took so many seconds ...
_TOOK_SECONDS = (0.55, 1.8, 3.0, 5.0, 15.0)
#: ... keeps others away from its broker for so many
_AWAY_SECONDS = (0.0, 2.0, 5.0, 6.0, 10.0, 30.0)


class SlowBrokers:
    """The brokers that were slow or did not answer, and until when others are better."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    @property
    def is_any(self) -> bool:
        """Whether a broker was slow and has not been quick since."""
        return bool(self._until)

    def note(self, broker_name: str, took_seconds: float, now: float) -> None:
        """Take in how long a broker took for a send; a quick one is as good as new."""
        away = _AWAY_SECONDS[bisect_right(_TOOK_SECONDS, took_seconds)]
        if away:
            known = self._until.copy()  # in one step: threads may note something meanwhile
            self._until = {name: until for name, until in known.items() if until > now}
            self._until[broker_name] = now + away
        elif self._until:
            self._until.pop(broker_name, None)

    def rank(self, broker_name: str, now: float) -> float:
        """Return 0 for a broker that is as good as any, else the more the longer it is bad."""
        return max(0.0, self._until.get(broker_name, now) - now)
