"""Runs a stream of Spark to its end, also on a machine on which Python starts slowly.

For the source of a stream, Spark starts a Python process for each query, and waits ten seconds for
it. No setting changes that. On a machine with other work, the imports alone may take longer.
"""

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

TRIES_MAX = 6
_NOT_STARTED = "Python worker failed to connect back"


def read_all(begin: Callable[[], StreamingQuery]) -> None:
    """Begin a query and wait for its end; begin it again if its Python process started too late.

    Args:
        begin: starts the query, with a checkpoint: a second query goes on where the first one was.
    """
    for left in reversed(range(TRIES_MAX)):
        try:
            begin().awaitTermination()
        except StreamingQueryException as error:
            if not left or _NOT_STARTED not in str(error):
                raise
        else:
            return
