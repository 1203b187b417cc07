"""A broker's commit log as the Spark data source `reliable_mq_log`, one row per record.

Receives options; hands Spark partitions that begin and end between records, and reads them in
Spark's workers as Arrow batches, so that no row passes the driver. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_log").option("path", "/data/store").load()

Options: `path` the store directory, of a running broker or a copy; `splitSize` bytes per partition
(64 MiB); `checkBody` whether `content_crc` is computed (true). Columns: `log_scan.LogRow`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.reconcile import file_store
from reliable_mq.reconcile.log_scan import LogRow
from reliable_mq.reconcile.source_options import number, option, switch

LOG_FORMAT = "reliable_mq_log"

_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
_TIME_COLUMNS = ("born_time", "store_time")
_TYPES = {
    **dict.fromkeys(("role", "topic", "consumer_group", "message_id", "tag"), _TEXT),
    **dict.fromkeys(("queue_topic", "reason"), _TEXT),
    **dict.fromkeys(("queue_offset", "commit_log_offset", "size"), _LONG),
    **dict.fromkeys(_TIME_COLUMNS, _TIME),
}
LOG_SCHEMA = pa.schema([(name, _TYPES.get(name, _INT)) for name in LogRow._fields])


class LogSource(DataSource):
    """A broker's commit log, one row per record; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LOG_FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(LOG_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return LogReader(
            option(self.options, "path"),
            number(self.options, "splitSize", file_store.SPLIT_SIZE),
            switch(self.options, "checkBody", "true"),
        )


class LogReader(DataSourceReader):
    """Reads partitions of a commit log in Spark's workers."""

    def __init__(self, path: str, split_size: int, check_body: bool) -> None:
        self._path = path
        self._split_size = split_size
        self._check_body = check_body

    def partitions(self) -> Sequence[InputPartition]:
        layout = file_store.read_layout(self._path, self._split_size)
        return [InputPartition(partition) for partition in layout.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark asks so when there is no partition at all
            return
        for rows in file_store.read_partition(partition.value, check_body=self._check_body):
            yield log_batch(rows)


def log_batch(rows: Sequence[LogRow]) -> pa.RecordBatch:
    """Return rows of a scan as an Arrow batch of `LOG_SCHEMA`."""
    columns: list[Any] = []
    for field, values in zip(LOG_SCHEMA, zip(*rows, strict=True), strict=True):
        if field.name in _TIME_COLUMNS:
            milliseconds = pa.array(values, type=pa.timestamp("ms", tz="UTC"))
            columns.append(milliseconds.cast(field.type))
        else:
            columns.append(pa.array(values, type=field.type))
    return pa.record_batch(columns, schema=LOG_SCHEMA)
