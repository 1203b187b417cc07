"""The differences between the clocks of the ledgers and the clock of this machine. Pure.

The clocks of database and broker date a message. The clock of the reconciling machine says when the
grace time is over. So a difference changes which messages count as young.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from reliable_mq.errors import ConfigurationError


class LedgerClock(NamedTuple):
    """A measured clock.

    Args:
        whose: the owner of the clock, as a text for people.
        ahead: seconds by which it is ahead of this machine's clock. Below 0: it is behind.
        wrong: the possible error of `ahead` in seconds, in both directions. Default 0.
    """

    whose: str
    ahead: float
    wrong: float = 0.0

    @property
    def difference(self) -> float:
        """The least possible difference to this machine's clock, in seconds, without a sign."""
        return max(abs(self.ahead) - self.wrong, 0.0)


def largest_difference(clocks: Iterable[LedgerClock], grace: timedelta) -> float:
    """Return the largest difference of a clock to this machine's clock, in seconds, without sign.

    Args:
        clocks: the measured clocks.
        grace: younger messages are not judged. 0: all processes have stopped; no clock is checked.

    Raises:
        ConfigurationError: when the difference exceeds the grace time: young messages would look
            old.
    """
    largest = 0.0
    for clock in clocks:
        largest = max(largest, clock.difference)
        if grace and clock.difference > grace.total_seconds():
            way = "ahead of" if clock.ahead > 0 else "behind"
            raise ConfigurationError(
                f"the clock of {clock.whose} is {abs(clock.ahead):.0f} s {way} this machine's, more"
                f" than --grace ({grace.total_seconds():g} s): messages in flight would be judged,"
                " or old messages would look young; set the clock, or raise --grace"
            )
    return largest
