"""Run increments one after another in one session, for `reliable-mq reconcile --follow`.

Spark's structured streaming is used only as the clock. The row of each increment says how far the
ledgers were read, and it commits together with the findings. Offsets of a stream would be a second
source of the same fact. If a batch takes longer than the interval, one batch follows, not all the
missed ones. If Spark repeats a batch, it is one more increment, with nothing to read.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.errors import ReliableMQError
from reliable_mq.reconcile.runs.run_options import RunOptions, check
from reliable_mq.reconcile.runs.spark_run import reconcile
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
    """Run increments until stopped; the first one at once.

    Args:
        options: the options of each increment, except `now`. `anew` is for the first one only.
        every: the least time between the starts of two increments.
        done: called with each summary.
        failed: called with the error of a later increment. The next one tries again.
        is_stopped: called every second.

    Raises:
        Exception: the errors of `spark_run.reconcile` in the first increment.
    """
    # `is_following`: otherwise repeated repairs would keep stubs from ever being escalated.
    options = replace(options, increment=True, is_following=True)
    check(options)  # before Spark starts, which takes ten seconds
    with (
        session(is_small=False, memory_bytes=options.memory_bytes) as spark,
        tempfile.TemporaryDirectory(prefix="reliable-mq-follow-") as folder,
    ):
        done(reconcile(options))
        later = replace(options, anew=False)

        def batch(_ticks: DataFrame, number: int) -> None:
            if number == 0 or is_stopped():  # tick 0 belongs to the first increment
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
