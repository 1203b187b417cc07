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

As a stream (`readStream`) it gives what is changed from `changedFrom` on; see `spark_table_stream`.

How: `rowsPerPartition` (250,000); `share` of the time that reading may take, from 0 to 1 (1);
`pushFilters` (false): the database leaves out what the filters of a query leave out, where the
DataFrame is made for that one query; see `FilterPushdown` in `spark_log_source`.
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
    """A table of the application, one row per stub, consume log, …; see this module's head."""

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
