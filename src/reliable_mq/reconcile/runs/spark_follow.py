"""Increments one behind the other in one session, for `reliable-mq reconcile --follow`.

Structured streaming is the clock, and nothing more: how far the ledgers were read stands in the row
of each increment, which commits with its findings; offsets of a stream beside it would be a second
truth about the same. A batch that takes longer than the interval is followed by one, not by all
that were missed, and a batch that Spark repeats is one more increment, with nothing to read.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.errors import ReliableMQError
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.reconcile.runs.spark_session import session

_LOOK_SECONDS = 1


def follow(
    options: RunOptions,
    every: timedelta,
    *,
    done: Callable[[dict[str, Any]], None],
    failed: Callable[[Exception], None],
    is_stopped: Callable[[], bool],
) -> None:
    """Do increments until stopped; the first one at once.

    Args:
        options: of each increment, but for its moment; `anew` of the first one.
        every: the least time from the beginning of one to that of the next.
        done: is given each summary.
        failed: is given what a later increment failed of; the next one tries again.
        is_stopped: asked every second.

    Raises:
        Whatever `spark_run.reconcile` raises of the first increment.
    """
    # Nobody looks at what a repair takes back, again and again: it would never be told.
    options = replace(options, increment=True, is_following=True)
    with (
        session(is_small=False, memory_bytes=options.memory_bytes) as spark,
        tempfile.TemporaryDirectory(prefix="reliable-mq-follow-") as folder,
    ):
        done(reconcile(options))
        later = replace(options, anew=False)

        def batch(_ticks: DataFrame, number: int) -> None:
            if number == 0 or is_stopped():  # the first tick is that of the first increment
                return
            try:
                done(reconcile(replace(later, now=datetime.now(UTC))))
            except (ReliableMQError, SQLAlchemyError, OSError) as error:
                if not is_stopped():
                    failed(error)

        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        writer = ticks.writeStream.foreachBatch(batch).option("checkpointLocation", folder)
        query = writer.trigger(processingTime=f"{every.total_seconds()} seconds").start()
        while not is_stopped() and not query.awaitTermination(_LOOK_SECONDS):
            pass
        query.stop()
