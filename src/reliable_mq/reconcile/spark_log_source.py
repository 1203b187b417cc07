"""A broker's commit log as the Spark data source `reliable_mq_log`, one row per record.

Receives options; hands Spark partitions that begin and end between records, and reads them in
Spark's workers as Arrow batches, so that no row passes the driver. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_log").option("path", "/data/store").load()

Options: `path` the store directory, of a running broker or a copy; `columns` the wanted ones, with
commas between them, of `log_schema.STORED_SCHEMA`; `splitSize` bytes per partition (64 MiB);
`checkBody` whether `content_crc` is computed (true); `broker` what the column of that name says.
Only the columns that were chosen, by the option or by `.schema(...)`, are read at all: Spark tells
a Python data source nothing of what a query uses.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile import file_store
from reliable_mq.reconcile.log_schema import (
    LOG_SCHEMA,
    STORED_SCHEMA,
    columns_of,
    with_broker,
    without_broker,
)
from reliable_mq.reconcile.source_options import names, number, option, switch

LOG_FORMAT = "reliable_mq_log"


class LogSource(DataSource):
    """A broker's commit log, one row per record; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LOG_FORMAT

    def schema(self) -> StructType:
        chosen = names(self.options, "columns", LOG_SCHEMA.names)
        return from_arrow_schema(columns_of(chosen, STORED_SCHEMA))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(
            option(self.options, "path"),
            number(self.options, "splitSize", file_store.SPLIT_SIZE),
            switch(self.options, "checkBody", "true"),
            known_columns(schema, STORED_SCHEMA),
            self.options.get("broker"),
        )


class LogReader(DataSourceReader):
    """Reads partitions of a commit log in Spark's workers.

    Args:
        path: the store directory.
        split_size: about how many bytes of the log a partition has.
        check_body: whether `content_crc` is computed; else it is null.
        schema: the wanted columns, of `STORED_SCHEMA`.
        broker: what the column of that name says; None: null.
    """

    def __init__(
        self,
        path: str,
        split_size: int,
        check_body: bool,
        schema: pa.Schema = LOG_SCHEMA,
        broker: str | None = None,
    ) -> None:
        self._path = path
        self._split_size = split_size
        self._check_body = check_body
        self._schema = schema
        self._broker = broker

    def partitions(self) -> Sequence[InputPartition]:
        layout = file_store.read_layout(self._path, self._split_size)
        return [InputPartition(partition) for partition in layout.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark asks so when there is no partition at all
            return
        batches = file_store.read_batches(
            partition.value, without_broker(self._schema), check_body=self._check_body
        )
        for batch in batches:
            yield with_broker(batch, self._schema, self._broker)


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
