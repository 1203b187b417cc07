"""Lets a process that runs no relay say that it is alive, as others do; see `sql_processes`.

Receives the moments of commits; hands on a measurement that was made anyway, once a minute, in a
thread that ends at once: who commits must not wait, and may hold the only lock or connection.
"""

import threading

from reliable_mq.database.sql_clock import DatabaseClock


class Presence:
    """Tells of one database's clock. Invariant: one thread at a time tells.

    Args:
        clock: it was asked for the time by whoever committed.
    """

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock
        self._telling: threading.Thread | None = None

    def show(self) -> None:
        """Say so when that was a minute ago, or never; never waits."""
        if not self._clock.is_untold or (self._telling is not None and self._telling.is_alive()):
            return
        self._telling = threading.Thread(
            target=self._clock.tell, name="reliable-mq-presence", daemon=True
        )
        self._telling.start()
