"""One look of a broker at its disk, as `BrokerChores.clean_forever` does it, in one step."""

from collections.abc import Callable

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.retention import DiskSurvey
from reliable_mq.watched_time import ClockReading


def begin_cleaning(
    core: BrokerCore, found: DiskSurvey, reading: ClockReading
) -> Callable[[], None] | None:
    """Forget what has expired; return the job that removes it, or None if there is nothing."""
    housekeeping, store = core.housekeeping, core.state.store
    if not housekeeping.look(found, reading):
        return None
    mark = store.mark()
    store.upkeep.flush()
    return housekeeping.removal(mark)
