"""How far the clocks of the databases are from this machine's, by which a run judges."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from sqlalchemy import make_url

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.sql_connection import connected
from reliable_mq.sql_clock import measure


def clock_skew(
    urls: Sequence[str], grace: timedelta, local: Callable[[], float] = time.time
) -> float:
    """Return the largest difference of a database's clock, in seconds, either way.

    Args:
        urls: the databases. One without a clock of its own, an SQLite file, does not differ.
        grace: what is younger is not judged; 0: everything has stopped, and no clock matters.
        local: this machine's clock.

    Raises:
        ConfigurationError: when it is longer than the grace time: what is young would look old.
        sqlalchemy.exc.SQLAlchemyError: when a database cannot be reached.
    """
    largest = 0.0
    for url in urls:
        with connected(url) as connection:
            ahead, wrong = measure(connection, local)
        largest = max(largest, abs(ahead) - wrong / 2)
        if grace and abs(ahead) - wrong / 2 > grace.total_seconds():
            way = "ahead of" if ahead > 0 else "behind"
            raise ConfigurationError(
                f"the clock of the database {make_url(url).render_as_string()} is"
                f" {abs(ahead):.0f} s {way} this machine's, more than --grace"
                f" ({grace.total_seconds():g} s): what is in flight would be judged"
            )
    return largest
