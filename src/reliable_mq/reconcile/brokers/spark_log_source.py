"""The Spark data source `reliable_mq_log`: a broker's store as log, consume queues or offsets.

Receives options. Returns partitions to Spark that begin and end between records. Spark's workers
read them as Arrow batches, so that no row goes through the driver. You can also use it directly:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_log").option("path", "/data/store").load()

Options:

- `path`: the store directory, of a running broker or a copy.
- `part`: `records` of the commit log (default), entries of its consume `queues`, or the committed
  `offsets` of its consumer groups.
- `columns`: the wanted columns of `PARTS`, separated by commas.
- `splitSize`: bytes of a partition. Default 64 MiB.
- `checkBody`: whether `content_crc` is computed. Default true.
- `broker`: the value of the column `broker`.
- `pushFilters`: see `FilterPushdown`.

Only columns that you choose, by the option or by `.schema(...)`, are read: Spark does not tell a
Python data source which columns a query uses. `spark_log_stream` has the stream.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.file_pruning import can_hold
from reliable_mq.reconcile.brokers.file_queues import QUEUE_SCHEMA
from reliable_mq.reconcile.brokers.log_schema import (
    LOG_SCHEMA,
    STORED_SCHEMA,
    columns_of,
    with_broker,
    without_broker,
)
from reliable_mq.reconcile.brokers.offset_rows import OFFSET_SCHEMA
from reliable_mq.reconcile.brokers.spark_log_stream import LogStream
from reliable_mq.reconcile.brokers.spark_queue_readers import ConsumeQueueReader, OffsetReader
from reliable_mq.reconcile.source_filters import Condition, conditions_of, filtered
from reliable_mq.reconcile.source_options import (
    PUSH_FILTERS,
    check_known,
    names,
    number,
    one_of,
    option,
    switch,
)

LOG_FORMAT = "reliable_mq_log"
RECORDS, QUEUES, OFFSETS = "records", "queues", "offsets"
#: For each part: all columns, and the default columns.
PARTS = {
    RECORDS: (STORED_SCHEMA, LOG_SCHEMA.names),
    QUEUES: (QUEUE_SCHEMA, QUEUE_SCHEMA.names),
    OFFSETS: (OFFSET_SCHEMA, OFFSET_SCHEMA.names),
}
OPTIONS = (
    *("path", "part", "columns", "checkBody", PUSH_FILTERS, "splitSize", "broker"),
    *("startingOffsets", "failOnDataLoss"),
)


class LogSource(DataSource):
    """A broker's store, one row for each record; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LOG_FORMAT

    def _part(self) -> str:
        check_known(self.options, LOG_FORMAT, OPTIONS)
        return one_of(self.options, "part", tuple(PARTS))

    def schema(self) -> StructType:
        known, usual = PARTS[self._part()]
        return from_arrow_schema(columns_of(names(self.options, "columns", usual), known))

    def reader(self, schema: StructType) -> DataSourceReader:
        part = self._part()
        path = option(self.options, "path")
        split_size = number(self.options, "splitSize", file_store.SPLIT_SIZE)
        broker = self.options.get("broker")
        chosen = known_columns(schema, PARTS[part][0])
        reader: LogReader | ConsumeQueueReader | OffsetReader
        if part == QUEUES:
            reader = ConsumeQueueReader(path, split_size, chosen)
        elif part == OFFSETS:
            reader = OffsetReader(path, chosen, broker)
        else:
            check_body = switch(self.options, "checkBody", "true")
            reader = LogReader(path, split_size, check_body, chosen, broker)
        return pushing(self.options, reader, chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        if self._part() != RECORDS:
            raise ConfigurationError("as a stream a store gives part=records only")
        return LogStream(
            option(self.options, "path"),
            number(self.options, "splitSize", file_store.SPLIT_SIZE),
            known_columns(schema, STORED_SCHEMA),
            check_body=switch(self.options, "checkBody", "true"),
            broker=self.options.get("broker"),
            from_begin=one_of(self.options, "startingOffsets", ("earliest", "latest"))
            == "earliest",
            fails_on_loss=switch(self.options, "failOnDataLoss", "true"),
        )


class FilterPushdown(DataSourceReader):
    """Passes a query's filters to another reader, as its attribute `conditions`.

    It is off by default because of a Spark problem (4.1 to 4.3,
    `PythonDataSourceV2.setReadInfo`). Spark keeps the filters of one query for all later queries on
    the same DataFrame or view. In a join of a DataFrame with itself, both sides get the filters of
    one side. Rows would be missing silently. If you switch it on, make one DataFrame for each
    query. Spark uses it while `spark.sql.python.filterPushdown.enabled` is set, as
    `spark_session.register` does.
    """

    def __init__(self, reader: Any, schema: pa.Schema) -> None:
        self._reader, self._schema = reader, schema

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Store the conditions of the filters, and let Spark apply all filters again."""
        self._reader.conditions = conditions_of(filters, self._schema)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._reader.read(partition)


def pushing(options: Mapping[str, str], reader: Any, schema: pa.Schema) -> DataSourceReader:
    """Return the reader, with filter pushdown if the option `pushFilters` is true."""
    return FilterPushdown(reader, schema) if switch(options, PUSH_FILTERS, "false") else reader


class LogReader(DataSourceReader):
    """Reads partitions of a commit log in Spark's workers.

    Args:
        path: the store directory.
        split_size: approximate bytes of the log in a partition.
        check_body: whether `content_crc` is computed. Otherwise it is null.
        schema: the wanted columns, from `STORED_SCHEMA`.
        broker: the value of the column `broker`. None: null.
        log_range: (begin, end) of the log offsets to read, end excluded. Both are between records.
            None: all.
    """

    def __init__(
        self,
        path: str,
        split_size: int,
        check_body: bool,
        schema: pa.Schema = LOG_SCHEMA,
        broker: str | None = None,
        log_range: tuple[int, int] | None = None,
    ) -> None:
        self._path = path
        self._split_size = split_size
        self._check_body = check_body
        self._schema = schema
        self._broker = broker
        self._log_range = log_range
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        partitions = file_store.read_layout(self._path, self._split_size).partitions
        if self._log_range is not None:
            partitions = file_store.cut_to_range(partitions, *self._log_range)
        return [InputPartition(each) for each in can_hold(partitions, self.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark does this if there is no partition
            return
        batches = file_store.read_batches(
            partition.value, without_broker(self._schema), check_body=self._check_body
        )
        for batch in batches:
            yield filtered(with_broker(batch, self._schema, self._broker), self.conditions)


def known_columns(schema: StructType, known: pa.Schema) -> pa.Schema:
    """Return the columns of a source that a Spark schema names.

    Raises:
        ConfigurationError: when a column does not exist, or has another type.
    """
    chosen = columns_of(schema.names, known)
    for field, told in zip(from_arrow_schema(chosen), schema, strict=True):
        if field.dataType != told.dataType:
            is_so, asked = field.dataType.simpleString(), told.dataType.simpleString()
            raise ConfigurationError(f"the column {field.name} is {is_so}, not {asked}")
    return chosen
