"""Whether a slave stands in for its master: the slave with the lowest id, while no master is there.

Receives what the name servers know, and whether the slave's connection to its master is open.
Returns a decision. It is careful: what waits can wait longer, and two brokers that deliver the same
message deliver it twice. Source: Apache RocketMQ `BrokerController.updateMinBroker`.
"""

from collections.abc import Mapping, Sequence

MASTER = 0
ALONE_SECONDS = 1.5
"""So long no master must be known before a slave stands in."""
UNTOLD_SECONDS = 5.0
"""After so long without an answer of a name server, a slave stands in no longer."""

Members = Mapping[int, str]
"""The brokers of one name that a name server knows: addresses by broker id."""


def is_first(own_id: int, answers: Sequence[Members | None]) -> bool | None:
    """Return whether a slave is the first broker of its name; None: nobody says it.

    A name server that does not know the slave itself was perhaps started just now, so that it says
    nothing about the master.

    Args:
        own_id: the id of the slave.
        answers: of the name servers; None: no answer.
    """
    known = [each for each in answers if each]
    if any(number < own_id for each in known for number in each):
        return False
    return True if any(own_id in each for each in known) else None


class StandInDecision:
    """Decides over time. All times are seconds of a monotonic clock.

    Invariant: it stands in only after `ALONE_SECONDS` of looks that all said that it is the first.
    """

    def __init__(self) -> None:
        self._alone_since: float | None = None
        self._told = 0.0  # when a name server has answered last
        self._until = 0.0  # it gives way until then
        self.is_acting = False

    def give_way(self, until: float) -> None:
        """Do not stand in before a time: the master is coming back."""
        self._until = until
        self._alone_since = None
        self.is_acting = False

    def look(self, now: float, *, first: bool | None, is_copying: bool) -> bool:
        """Take what was found; return whether the slave stands in now.

        Args:
            now: the time.
            first: see `is_first`.
            is_copying: whether the master sends its log.
        """
        if first is not None:
            self._told = now
        if is_copying or first is False or now < self._until:
            self._alone_since = None
            self.is_acting = False
        elif first is None:
            if now - self._told > UNTOLD_SECONDS:
                self._alone_since = None
                self.is_acting = False
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= ALONE_SECONDS:
            self.is_acting = True
        return self.is_acting
