"""Tells people again and again. Receives an event that ends it.

In a thread of its own: a mail server that is slow must not hold up what is sent again.
"""

import logging
import time
from collections.abc import Callable

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.escalate.alerts import Alerts
from reliable_mq.runtime.stopped import StopSignal

log = logging.getLogger(__name__)


def tell_forever(
    alerts: Alerts,
    stopped: StopSignal,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run until `stopped`, every `interval` seconds."""
    faults = FaultLog(log, "alerts")
    while not stopped.is_set():
        try:
            counts = alerts.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.tell(error)
        else:
            if counts.told or counts.stuck:
                log.info("alerts: %s", counts)
        stopped.wait(interval)
