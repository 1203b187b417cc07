"""The application's tables as the Spark data source `reliable_mq_table`.

Receives options; hands Spark ranges found from the database itself, and reads them in Spark's
workers as Arrow batches, so that no row passes the driver. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_table").option("url", "sqlite:////data/shop.db")
        .option("table", "stub").load()

Options: `url` any SQLAlchemy URL; `table` one of `ledger_columns`: stub, consume_log, confirmation,
key, escalation, audit, run, finding; `prefix` of the table names (rmq_).

What is read: `columns`, by commas, or `.schema(...)`, for Spark does not tell a Python source which
columns a query needs (all but the content of stubs); `content` whether stubs come with it, too
(false). `idFrom` and `idTo` the window of message ids, the end excluded; or `changedFrom` and
`changedTo`, ISO 8601, when a stub, consume log or confirmation was changed, and `open` whether with
everything that is open (false).

How: `rowsPerPartition` (250,000); `share` of the time that reading may take, from 0 to 1 (1).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile import sql_arrow, sql_ranges
from reliable_mq.reconcile.ledger_columns import (
    CONTENT,
    STUB,
    schema_of,
    stored_columns,
    table_of,
)
from reliable_mq.reconcile.source_filters import AMONG, EQUAL, Condition, conditions_of
from reliable_mq.reconcile.source_options import moment, names, number, option, share, switch
from reliable_mq.reconcile.sql_conditions import EVERYTHING
from reliable_mq.reconcile.sql_ledger import check_ledgers

TABLE_FORMAT = "reliable_mq_table"
_POINTS = (EQUAL, AMONG)


def _window(options: Mapping[str, str]) -> sql_ranges.IdWindow | sql_ranges.Changes:
    ids = (options.get("idFrom"), options.get("idTo"))
    changed = (moment(options, "changedFrom"), moment(options, "changedTo"))
    if changed == (None, None):
        return sql_ranges.IdWindow(*ids)
    if ids != (None, None):
        raise ConfigurationError("give idFrom and idTo, or changedFrom and changedTo, not both")
    return sql_ranges.Changes(*changed, with_open=switch(options, "open", "false"))


class TableReader(DataSourceReader):
    """Reads ranges of a table in Spark's workers.

    Args:
        url: of the database, SQLAlchemy's.
        table: the ledger's name, of `ledger_columns`.
        prefix: of the table names.
        window: what of it; `sql_ranges` tells how it is cut into partitions.
        rows_per_partition: about how many rows a partition has.
        columns: which ones, in this order (all but the content of stubs).
        groups: only of these consumer groups (all).
        share: of the time, how much reading may take; the rest is slept (1.0).

    Raises:
        ConfigurationError: when there is no such ledger or column.
    """

    def __init__(
        self,
        *,
        url: str,
        table: str,
        prefix: str,
        window: sql_ranges.IdWindow | sql_ranges.Changes,
        rows_per_partition: int = sql_ranges.ROWS_PER_PARTITION,
        columns: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        share: float = 1.0,
    ) -> None:
        self._url = url
        self._window = window
        self._rows_per_partition = rows_per_partition
        held = () if groups is None else (Condition("consumer_group", AMONG, tuple(groups)),)
        self.asked = sql_arrow.Asked(
            ledger=table,
            prefix=prefix,
            columns=tuple(schema_of(table, columns).names),
            conditions=held,
            share=share,
        )

    def partitions(self) -> Sequence[InputPartition]:
        ledger, prefix = self.asked.ledger, self.asked.prefix
        check_ledgers(self._url, prefix, {ledger: stored_columns(self.asked.columns)})
        if any(
            each.column == "message_id" and each.operator in _POINTS
            for each in self.asked.conditions
        ):
            return [InputPartition(EVERYTHING)]  # few rows, which an index finds
        ranges = sql_ranges.key_ranges(
            self._url, ledger, prefix, self._window, self._rows_per_partition
        )
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from sql_arrow.read(self._url, replace(self.asked, part=partition.value))


class FilteringTableReader(TableReader):
    """Lets the database leave out rows that a query's filters leave out."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take note of what the filters say, and leave all of them to Spark, too."""
        table = table_of(self.asked.ledger, self.asked.prefix)
        stored = [name for name in schema_of(self.asked.ledger).names if name in table.c]
        held = conditions_of(filters, schema_of(self.asked.ledger, stored))
        self.asked = replace(self.asked, conditions=(*self.asked.conditions, *held))
        return filters


class TableSource(DataSource):
    """A table of the application, one row per stub, consume log, …; see this module's head."""

    reader_type: type[TableReader] = TableReader

    @classmethod
    def name(cls) -> str:
        return TABLE_FORMAT

    def _columns(self) -> pa.Schema:
        table = option(self.options, "table")
        schema = schema_of(table, names(self.options, "columns", schema_of(table).names))
        if (
            switch(self.options, "content", "false")
            and table == STUB
            and CONTENT not in schema.names
        ):
            return schema_of(table, [*schema.names, CONTENT])
        return schema

    def schema(self) -> StructType:
        return from_arrow_schema(self._columns())

    def reader(self, schema: StructType) -> TableReader:
        table = option(self.options, "table")
        return self.reader_type(
            url=option(self.options, "url"),
            table=table,
            prefix=option(self.options, "prefix", "rmq_"),
            window=_window(self.options),
            rows_per_partition=number(
                self.options, "rowsPerPartition", sql_ranges.ROWS_PER_PARTITION
            ),
            columns=_asked(table, schema),
            share=share(self.options, "share"),
        )


def _asked(table: str, schema: StructType) -> list[str]:
    """Return the columns of the schema that a query was given.

    Raises:
        ConfigurationError: when the ledger has no such column, or it is of another type.
    """
    known = from_arrow_schema(schema_of(table, schema.fieldNames()))
    for theirs, ours in zip(schema.fields, known.fields, strict=True):
        if theirs.dataType != ours.dataType:
            raise ConfigurationError(
                f"the column {ours.name!r} of {table!r} is of type {ours.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return schema.fieldNames()


class FilteringTableSource(TableSource):
    """The same source where Spark pushes filters down to Python sources.

    Spark refuses such a reader unless `spark.sql.python.filterPushdown.enabled` is set, which a
    source that Spark finds by itself cannot do, and `spark_session.register` can.
    """

    reader_type = FilteringTableReader
