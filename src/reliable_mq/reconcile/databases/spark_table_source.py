"""The Spark data source `reliable_mq_table`: the application's tables.

Receives options. Returns ranges to Spark, which it finds in the database. Spark's workers read them
as Arrow batches, so that no row goes through the driver. You can also use it directly:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_table").option("url", "sqlite:////data/shop.db")
        .option("table", "stub").load()

Options:

- `url`: any SQLAlchemy URL.
- `table`: stub, consume_log, confirmation, key, escalation, audit, run or finding.
- `prefix`: the prefix of the table names. Default rmq_.
- `columns`: the columns to read, separated by commas. Default: all except the content of stubs.
  Or use `.schema(...)`: Spark does not tell a Python source which columns a query needs.
- `content`: whether stubs are read with their content. Default false.
- `idFrom`, `idTo`: a range of message ids, end excluded.
- `changedFrom`, `changedTo`: instead of ids, a range of times (ISO 8601) in which a stub, consume
  log or confirmation changed, end excluded.
- `open`: with `changedFrom` or `changedTo`: also all open rows. Default false.
- `rowsPerPartition`: default 250,000.
- `share`: the part of the time that reads may take, above 0, up to 1. Default 1.
- `pushFilters`: whether the database applies the filters of a query. Default false. Use it only
  with one DataFrame for each query; see `FilterPushdown` in `spark_log_source`.

As a stream (`readStream`) it returns changes from `changedFrom` on; see `spark_table_stream`.
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases import sql_ranges
from reliable_mq.reconcile.databases.ledger_columns import CONTENT, STUB, schema_of
from reliable_mq.reconcile.databases.spark_table_reader import FilteringTableReader, TableReader
from reliable_mq.reconcile.databases.spark_table_stream import TableStream
from reliable_mq.reconcile.source_options import (
    PUSH_FILTERS,
    check_known,
    moment,
    names,
    number,
    option,
    share,
    switch,
)

TABLE_FORMAT = "reliable_mq_table"
OPTIONS = (
    *("url", "table", "prefix", "columns", "content", "idFrom", "idTo"),
    *("changedFrom", "changedTo", "open", "rowsPerPartition", "share", PUSH_FILTERS),
)


def _window(options: Mapping[str, str]) -> sql_ranges.IdWindow | sql_ranges.ChangeWindow:
    ids = (options.get("idFrom"), options.get("idTo"))
    changed = (moment(options, "changedFrom"), moment(options, "changedTo"))
    if changed == (None, None):
        return sql_ranges.IdWindow(*ids)
    if ids != (None, None):
        raise ConfigurationError("give idFrom and idTo, or changedFrom and changedTo, not both")
    return sql_ranges.ChangeWindow(*changed, with_open=switch(options, "open", "false"))


class TableSource(DataSource):
    """A table of the application, with its rows; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return TABLE_FORMAT

    def _table(self) -> str:
        check_known(self.options, TABLE_FORMAT, OPTIONS)
        return option(self.options, "table")

    def _columns(self) -> pa.Schema:
        table = self._table()
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
        table = self._table()
        pushes = switch(self.options, PUSH_FILTERS, "false")
        return (FilteringTableReader if pushes else TableReader)(
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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        since = moment(self.options, "changedFrom")
        return TableStream(self.reader(schema), option(self.options, "url"), since)


def _asked(table: str, schema: StructType) -> list[str]:
    """Return the columns of the schema of a query.

    Raises:
        ConfigurationError: when the ledger lacks a column, or a column has another type.
    """
    known = from_arrow_schema(schema_of(table, schema.fieldNames()))
    for theirs, ours in zip(schema.fields, known.fields, strict=True):
        if theirs.dataType != ours.dataType:
            raise ConfigurationError(
                f"the column {ours.name!r} of {table!r} is of type {ours.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return schema.fieldNames()
