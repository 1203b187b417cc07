"""The loop that sends alerts. It runs until the caller's event is set.

It has a thread of its own: a slow mail server must not delay the resend scheduler.
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
    """Run `alerts` every `interval` seconds, until `stopped` is set."""
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
