"""A broker's store as the Spark data source `reliable_mq_log`: log, consume queues or offsets.

Receives options; hands Spark partitions that begin and end between records, and reads them in
Spark's workers as Arrow batches, so that no row passes the driver. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_log").option("path", "/data/store").load()

Options: `path` the store directory, of a running broker or a copy; `part` what of it: `records` of
the commit log (as it is), what its `queues` list, or the `offsets` of its consumer groups;
`columns` the wanted ones, with commas between them, of `PARTS`; `splitSize` bytes per partition
(64 MiB); `checkBody` whether `content_crc` is computed (true); `broker` what the column of that
name says; `pushFilters`, see `FilterPushdown`. Only the columns that were chosen, by the option or
by `.schema(...)`, are read at all: Spark tells a Python data source nothing of what a query uses.
As a stream: `spark_log_stream`.
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
from reliable_mq.reconcile.brokers.offset_table import OFFSET_SCHEMA
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
#: What can be asked of each part, and what is given when nothing is.
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
    """A broker's commit log, one row per record; see the head of this module."""

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
    """Another reader that is told of a query's filters, as its attribute `conditions`.

    Spark (4.1 to 4.3, `PythonDataSourceV2.setReadInfo`) keeps what one query pushed for all that
    come later on the same DataFrame or view, and a join of it with itself has one side's filters on
    both: rows would be missing without a word. So it is done only where somebody asks for it, who
    then makes one DataFrame for each query. Spark takes it while
    `spark.sql.python.filterPushdown.enabled` is set, as `spark_session.register` does.
    """

    def __init__(self, reader: Any, schema: pa.Schema) -> None:
        self._reader, self._schema = reader, schema

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take note of what the filters say, and leave all of them to Spark, too."""
        self._reader.conditions = conditions_of(filters, self._schema)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._reader.read(partition)


def pushing(options: Mapping[str, str], reader: Any, schema: pa.Schema) -> DataSourceReader:
    """Return the reader, told of filters if the option `pushFilters` says so."""
    return FilterPushdown(reader, schema) if switch(options, PUSH_FILTERS, "false") else reader


class LogReader(DataSourceReader):
    """Reads partitions of a commit log in Spark's workers.

    Args:
        path: the store directory.
        split_size: about how many bytes of the log a partition has.
        check_body: whether `content_crc` is computed; else it is null.
        schema: the wanted columns, of `STORED_SCHEMA`.
        broker: what the column of that name says; None: null.
        log_range: only records that begin at the first of these log offsets or behind it, and
            before the second one; both lie between records.
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
            partitions = file_store.within(partitions, *self._log_range)
        return [InputPartition(each) for each in can_hold(partitions, self.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark asks so when there is no partition at all
            return
        batches = file_store.read_batches(
            partition.value, without_broker(self._schema), check_body=self._check_body
        )
        for batch in batches:
            yield filtered(with_broker(batch, self._schema, self._broker), self.conditions)


def known_columns(schema: StructType, known: pa.Schema) -> pa.Schema:
    """Return the columns that Spark was told a source has.

    Raises:
        ConfigurationError: when one is not there, or is of another type.
    """
    chosen = columns_of(schema.names, known)
    for field, told in zip(from_arrow_schema(chosen), schema, strict=True):
        if field.dataType != told.dataType:
            is_so, asked = field.dataType.simpleString(), told.dataType.simpleString()
            raise ConfigurationError(f"the column {field.name} is {is_so}, not {asked}")
    return chosen
