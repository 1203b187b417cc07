"""The Arrow schemas of log records, and the conversion of rows to them. Pure."""

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.log_scan import LogRow

_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
_TIME_COLUMNS = frozenset({"born_time", "store_time", "due_time"})
_TYPES = {
    **dict.fromkeys(("role", "topic", "consumer_group", "message_id", "tag"), _TEXT),
    **dict.fromkeys(("queue_topic", "reason"), _TEXT),
    **dict.fromkeys(("queue_offset", "commit_log_offset", "size"), _LONG),
    **dict.fromkeys(_TIME_COLUMNS, _TIME),
    "message_digest": pa.binary(),
}
LOG_SCHEMA = pa.schema([(name, _TYPES.get(name, _INT)) for name in LogRow._fields])
"""The default columns of records: the fields of `LogRow`."""
BODY, PROPERTIES = "body", "properties"
RECORD_SCHEMA = pa.schema([*LOG_SCHEMA, (BODY, pa.binary()), (PROPERTIES, pa.binary())])
"""All columns of records: also the stored body and the stored text of the properties."""
BROKER = "broker"
STORED_SCHEMA = pa.schema([(BROKER, pa.string()), *RECORD_SCHEMA])
"""All columns that a source offers: also the broker's name, which is not in a record."""

# The dates that Python, Spark and databases support: the years 1 to 9999.
TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999


def columns_of(names: Collection[str], schema: pa.Schema) -> pa.Schema:
    """Return the named columns of a schema, in the order of the names.

    Raises:
        ConfigurationError: when a column does not exist.
    """
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise ConfigurationError(
            f"no such column: {', '.join(unknown)}; there are {', '.join(schema.names)}"
        )
    return pa.schema([schema.field(name) for name in names])


def log_batch(rows: Sequence[LogRow], schema: pa.Schema = LOG_SCHEMA) -> pa.RecordBatch:
    """Return rows of the plain reader as a batch with columns of `LOG_SCHEMA`.

    A time before the year 1 or after the year 9999 becomes null.
    """
    made: list[Any] = []
    for field in schema:
        at = LogRow._fields.index(field.name)
        values: list[Any] = [row[at] for row in rows]
        if field.name in _TIME_COLUMNS:
            clipped = [
                value if value is not None and TIME_MIN_MS <= value <= TIME_MAX_MS else None
                for value in values
            ]
            milliseconds = pa.array(clipped, type=pa.timestamp("ms", tz="UTC"))
            made.append(milliseconds.cast(field.type))
        else:
            made.append(pa.array(values, type=field.type))
    return pa.record_batch(made, schema=schema)


def with_broker(batch: pa.RecordBatch, schema: pa.Schema, broker: str | None) -> pa.RecordBatch:
    """Return a batch with the broker's name in the column `broker`, if `schema` has this column."""
    if BROKER not in schema.names:
        return batch
    name = pa.repeat(pa.scalar(broker, pa.string()), batch.num_rows)
    values = [name if field.name == BROKER else batch.column(field.name) for field in schema]
    return pa.record_batch(values, schema=schema)


def without_broker(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are in the records: all but `broker`."""
    return columns_of([name for name in schema.names if name != BROKER], RECORD_SCHEMA)
