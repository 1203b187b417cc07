"""The product's judgement over ledgers as Parquet, without Spark, in parts of whole messages."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.spark_begins import oldest_of
from reliable_mq.reconcile.judgement.events import EVENTS
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.ledger_events import log_events, record_events, stub_events
from reliable_mq.reconcile.judgement.world import World

MESSAGES_AT_ONCE = 250_000


def judged(
    folder: Path, as_of: datetime, grace: timedelta, messages_at_once: int = MESSAGES_AT_ONCE
) -> pa.Table:
    """Return message_id, consumer_group and verdict of every row."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        world = _world(connection, folder, as_of, grace)
        count = connection.execute(f"SELECT count(*) FROM '{folder}/stubs/*.parquet'").fetchall()
        parts = count[0][0] // messages_at_once + 1
        found = [judge(_events(connection, folder, part, parts), world) for part in range(parts)]
    columns = ("message_id", "consumer_group", "verdict")
    return pa.table(
        {
            name: pa.concat_arrays(
                [chunk.cast(pa.string()) for table in found for chunk in table[name].chunks]
            )
            for name in columns
        }
    )


def _events(connection: duckdb.DuckDBPyConnection, folder: Path, part: int, parts: int) -> pa.Table:
    adapters: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
        "stubs": stub_events,
        "consume_logs": log_events,
        "records": partial(record_events, broker=""),
    }
    batches = []
    for name, events_of in adapters.items():
        rows = connection.sql(
            f"SELECT * FROM '{folder}/{name}/*.parquet' WHERE hash(message_id) % {parts} = {part}"
        ).to_arrow_table()
        batches += [events_of(batch) for batch in _as_read(rows).to_batches()]
    events = pa.Table.from_batches(batches, EVENTS)
    return events.filter(pc.is_valid(events["id"]))


def _as_read(rows: pa.Table) -> pa.Table:
    """Return rows with the types that readers of ledgers give: times in UTC."""
    time = pa.timestamp("us", tz="UTC")
    fields = [
        field.with_type(time) if pa.types.is_timestamp(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _world(
    connection: duckdb.DuckDBPyConnection, folder: Path, as_of: datetime, grace: timedelta
) -> World:
    def rows(name: str, columns: str) -> list[tuple[str, str, int, int]]:
        return connection.execute(f"SELECT {columns} FROM '{folder}/{name}/*.parquet'").fetchall()

    progress: dict[tuple[str, str, str], dict[int, int]] = {}
    for group, topic, queue, offset in rows(
        "progress", 'consumer_group, topic, queue_id, "offset"'
    ):
        progress.setdefault(("", group, topic), {})[queue] = offset
    begins: dict[tuple[str, str], dict[int, int]] = {}
    for _, topic, queue, offset in rows("queue_begins", 'broker, topic, queue_id, "offset"'):
        begins.setdefault(("", topic), {})[queue] = offset
    records = f"'{folder}/records/*.parquet'"
    first = f"SELECT epoch_ms(arg_min(store_time, commit_log_offset)) FROM {records}"
    ((oldest_ms,),) = connection.execute(first).fetchall()
    managed = connection.execute(f"SELECT DISTINCT topic FROM '{folder}/stubs/*.parquet'")
    return World(
        as_of=as_of,
        grace=grace,
        moving_since=as_of - min(grace, timedelta(seconds=5)),
        managed=frozenset(topic for (topic,) in managed.fetchall()),
        progress=progress,
        begins=begins,
        oldest=oldest_of("", oldest_ms),
    )
