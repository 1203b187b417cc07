"""Measure the clocks of the databases against this machine's clock, by which a run judges."""

import time
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import make_url

from reliable_mq.database.sql_clock import measure
from reliable_mq.reconcile.clocks import LedgerClock
from reliable_mq.reconcile.databases.sql_connection import connected


def database_clocks(
    urls: Sequence[str], local: Callable[[], float] = time.time
) -> Iterator[LedgerClock]:
    """Yield the clock of each database.

    Args:
        urls: the databases. An SQLite file has no clock of its own, so it does not differ.
        local: this machine's clock, seconds since the epoch.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: when a database cannot be reached.
    """
    for url in urls:
        with connected(url) as connection:
            ahead, took = measure(connection, local)
        yield LedgerClock(f"the database {make_url(url).render_as_string()}", ahead, took / 2)
