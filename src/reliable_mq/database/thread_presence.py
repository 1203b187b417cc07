"""Lets a process without a relay report that it is alive, as others do; see `sql_processes`.

Receives the moments of commits. Reports a clock measurement that was made anyway, once a minute, in
a short-lived thread: a committing thread must not wait, and may hold the only lock or connection.
"""

import threading

from reliable_mq.database.sql_clock import DatabaseClock


class Presence:
    """Reports one database's clock. Invariant: one thread at a time reports.

    Args:
        clock: the clock; the committing thread has asked it for the time.
    """

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock
        self._reporting: threading.Thread | None = None

    def show(self) -> None:
        """Report, if the last report is at least a minute ago; never waits."""
        if not self._clock.is_report_due or (
            self._reporting is not None and self._reporting.is_alive()
        ):
            return
        self._reporting = threading.Thread(
            target=self._clock.report_measured, name="reliable-mq-presence", daemon=True
        )
        self._reporting.start()
