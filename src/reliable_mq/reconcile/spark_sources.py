"""The ledgers as Spark data sources: `reliable_mq_table` and `reliable_mq_log`.

Receives options; hands Spark partitions that are found from the ledger itself and read in Spark's
workers as Arrow batches, so that no row passes the driver. They are of use by themselves:

    register(spark)
    spark.read.format("reliable_mq_log").option("path", "/data/store").load()
    spark.read.format("reliable_mq_table").option("url", "sqlite:////data/shop.db")
        .option("table", "stub").load()

Options of `reliable_mq_log`: `path` the store directory; `splitSize` bytes per partition (64 MiB);
`checkBody` whether `content_crc` is computed (true).
Options of `reliable_mq_table`: `url` any SQLAlchemy URL; `table` stub or consume_log; `prefix` of
the table names (rmq_); `idFrom` and `idTo` the window of message ids, the end excluded;
`rowsPerPartition` (250,000); `content` whether stubs come with their content (false).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile import file_store, sql_ledger
from reliable_mq.reconcile.log_scan import LogRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_FORMAT, TABLE_FORMAT = "reliable_mq_log", "reliable_mq_table"

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


def _option(options: Mapping[str, str], name: str, otherwise: str | None = None) -> str:
    value = options.get(name, otherwise)
    if value is None:
        raise ConfigurationError(f"the option {name!r} is missing")
    return value


def _number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    value = options.get(name, str(otherwise))
    if not value.isdigit() or int(value) == 0:
        raise ConfigurationError(f"the option {name!r} takes a number above 0, not {value!r}")
    return int(value)


def _switch(options: Mapping[str, str], name: str, otherwise: str) -> bool:
    value = options.get(name, otherwise).lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"the option {name!r} is true or false, not {value!r}")
    return value == "true"


class LogSource(DataSource):
    """A broker's commit log, one row per record; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LOG_FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(LOG_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return LogReader(
            _option(self.options, "path"),
            _number(self.options, "splitSize", file_store.SPLIT_SIZE),
            _switch(self.options, "checkBody", "true"),
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


class TableSource(DataSource):
    """A table of the application, one row per stub or consume log; see this module's head."""

    @classmethod
    def name(cls) -> str:
        return TABLE_FORMAT

    def _table(self) -> str:
        name = _option(self.options, "table")
        if name not in sql_ledger.COLUMNS:
            raise ConfigurationError(
                f"the option 'table' is one of {', '.join(sql_ledger.COLUMNS)}, not {name!r}"
            )
        return name

    def schema(self) -> StructType:
        with_content = _switch(self.options, "content", "false")
        return from_arrow_schema(sql_ledger.arrow_schema(self._table(), with_content=with_content))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return TableReader(
            url=_option(self.options, "url"),
            table=self._table(),
            prefix=_option(self.options, "prefix", "rmq_"),
            window=sql_ledger.IdWindow(self.options.get("idFrom"), self.options.get("idTo")),
            rows_per_partition=_number(
                self.options, "rowsPerPartition", sql_ledger.ROWS_PER_PARTITION
            ),
            with_content=_switch(self.options, "content", "false"),
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
    ) -> None:
        self._url = url
        self._table = table
        self._prefix = prefix
        self._window = window
        self._rows_per_partition = rows_per_partition
        self._with_content = with_content

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
        )


def register(spark: "SparkSession") -> None:
    """Make the two sources known to a session under their short names."""
    spark.dataSource.register(LogSource)
    spark.dataSource.register(TableSource)
