"""Read the events of exported ledgers.

Receives the folder of an export (`spark_export`), on any file system that Spark supports. Spark's
own readers read it. Returns all its ledgers as events, for the job.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.ledger_events import (
    log_events,
    notice_events,
    record_events,
    stub_events,
)
from reliable_mq.reconcile.runs.spark_export import RECORDS

Adapter = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class EventAdapter:
    """Converts the rows of one ledger to events, in Spark's workers."""

    events_of: Adapter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of each batch."""
        for batch in batches:
            yield event_rows(self.events_of(batch))


def exported_events(spark: SparkSession, uri: str) -> DataFrame:
    """Return all exported ledgers as events.

    For a group without a consume log, its notices are used.
    """
    logs = spark.read.parquet(f"{uri}/consume_logs")
    notices = spark.read.parquet(f"{uri}/confirmations")
    own = logs.select("consumer_group").distinct()
    frames: list[tuple[DataFrame, Adapter]] = [
        (spark.read.parquet(f"{uri}/stubs"), stub_events),
        (logs, log_events),
        (notices.join(own, "consumer_group", "left_anti"), notice_events),
        (spark.read.parquet(f"{uri}/{RECORDS}"), exported_record_events),
    ]
    schema = from_arrow_schema(EVENT_ROWS)
    adapted = [frame.mapInArrow(EventAdapter(events_of), schema) for frame, events_of in frames]
    return reduce(DataFrame.union, adapted)


def exported_record_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records as events, each with the broker in its column `broker`."""
    brokers = batch["broker"].unique().to_pylist()
    events = [
        record_events(batch.filter(pc.equal(batch["broker"], broker)), broker) for broker in brokers
    ]
    return pa.concat_batches(events) if events else record_events(batch, "")
