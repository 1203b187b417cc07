"""The application's tables as the Spark data source `reliable_mq_table`.

Receives options; hands Spark key ranges found from the database itself, and reads them in Spark's
workers as Arrow batches, so that no row passes the driver. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_table").option("url", "sqlite:////data/shop.db")
        .option("table", "stub").load()

Options: `url` any SQLAlchemy URL; `table` stub, consume_log or confirmation; `prefix` of the table
names (rmq_); `idFrom` and `idTo` the window of message ids, the end excluded; `rowsPerPartition`
(250,000); `content` whether stubs come with their content (false). Columns: `sql_ledger.COLUMNS`.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile import sql_ledger
from reliable_mq.reconcile.source_options import number, option, switch

TABLE_FORMAT = "reliable_mq_table"


class TableSource(DataSource):
    """A table of the application, one row per stub or consume log; see this module's head."""

    @classmethod
    def name(cls) -> str:
        return TABLE_FORMAT

    def _table(self) -> str:
        name = option(self.options, "table")
        if name not in sql_ledger.COLUMNS:
            raise ConfigurationError(
                f"the option 'table' is one of {', '.join(sql_ledger.COLUMNS)}, not {name!r}"
            )
        return name

    def schema(self) -> StructType:
        with_content = switch(self.options, "content", "false")
        return from_arrow_schema(sql_ledger.arrow_schema(self._table(), with_content=with_content))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return TableReader(
            url=option(self.options, "url"),
            table=self._table(),
            prefix=option(self.options, "prefix", "rmq_"),
            window=sql_ledger.IdWindow(self.options.get("idFrom"), self.options.get("idTo")),
            rows_per_partition=number(
                self.options, "rowsPerPartition", sql_ledger.ROWS_PER_PARTITION
            ),
            with_content=switch(self.options, "content", "false"),
        )


class TableReader(DataSourceReader):
    """Reads key ranges of a table in Spark's workers."""

    def __init__(
        self,
        *,
        url: str,
        table: str,
        prefix: str,
        window: sql_ledger.IdWindow,
        rows_per_partition: int,
        with_content: bool,
        groups: Sequence[str] | None = None,
    ) -> None:
        self._url = url
        self._table = table
        self._prefix = prefix
        self._window = window
        self._rows_per_partition = rows_per_partition
        self._with_content = with_content
        self._groups = groups

    def partitions(self) -> Sequence[InputPartition]:
        ranges = sql_ledger.key_ranges(
            self._url, self._table, self._prefix, self._window, self._rows_per_partition
        )
        return [InputPartition(key_range) for key_range in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from sql_ledger.read_range(
            self._url,
            self._table,
            self._prefix,
            self._window,
            partition.value,
            with_content=self._with_content,
            groups=self._groups,
        )
