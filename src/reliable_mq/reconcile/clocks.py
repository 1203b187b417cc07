"""How far the clocks of those who write ledgers are from this machine's. Pure.

A message is young by the clocks of its database and its broker; the grace time ends by that of the
machine that reconciles.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from reliable_mq.errors import ConfigurationError


class LedgerClock(NamedTuple):
    """What is known of a clock.

    Args:
        whose: for people.
        ahead: seconds that it is ahead of this machine's; below 0 it is behind.
        wrong: by how many seconds that may be wrong, either way.
    """

    whose: str
    ahead: float
    wrong: float = 0.0

    @property
    def difference(self) -> float:
        """How far it surely is from this machine's, in seconds, either way."""
        return max(abs(self.ahead) - self.wrong, 0.0)


def largest_difference(clocks: Iterable[LedgerClock], grace: timedelta) -> float:
    """Return the largest difference of a clock to this machine's, in seconds, either way.

    Args:
        clocks: those that are known.
        grace: what is younger is not judged; 0: everything has stopped, and no clock matters.

    Raises:
        ConfigurationError: when it is longer than the grace time: what is young would look old.
    """
    largest = 0.0
    for clock in clocks:
        largest = max(largest, clock.difference)
        if grace and clock.difference > grace.total_seconds():
            way = "ahead of" if clock.ahead > 0 else "behind"
            raise ConfigurationError(
                f"the clock of {clock.whose} is {abs(clock.ahead):.0f} s {way} this machine's, more"
                f" than --grace ({grace.total_seconds():g} s): what is in flight would be judged,"
                " or what is old would look young"
            )
    return largest
