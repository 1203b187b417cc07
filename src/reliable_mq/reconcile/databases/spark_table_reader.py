"""The reader of a table in Spark's workers: finds ranges, and returns rows as Arrow batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from reliable_mq.reconcile.databases import sql_arrow, sql_ranges
from reliable_mq.reconcile.databases.ledger_columns import schema_of, stored_columns, table_of
from reliable_mq.reconcile.databases.sql_conditions import EVERYTHING
from reliable_mq.reconcile.databases.sql_ledger import check_ledgers
from reliable_mq.reconcile.source_filters import AMONG, EQUAL, Condition, conditions_of

_POINTS = (EQUAL, AMONG)


class TableReader(DataSourceReader):
    """Reads ranges of a table in Spark's workers.

    Args:
        url: the SQLAlchemy URL of the database.
        table: the ledger's name, from `ledger_columns`.
        prefix: the prefix of the table names.
        window: the part of the table to read; `sql_ranges` cuts it into partitions.
        rows_per_partition: approximate rows of a partition. Default 250,000.
        columns: the columns to read, in this order. None: all except the content of stubs.
        groups: read only rows of these consumer groups. None: all.
        share: the part of the time that reads may take, above 0, up to 1; the reader sleeps for
            the rest. Default 1.0.

    Raises:
        ConfigurationError: when the ledger or a column does not exist.
    """

    def __init__(
        self,
        *,
        url: str,
        table: str,
        prefix: str,
        window: sql_ranges.IdWindow | sql_ranges.ChangeWindow,
        rows_per_partition: int = sql_ranges.ROWS_PER_PARTITION,
        columns: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        share: float = 1.0,
    ) -> None:
        self._url = url
        self._window = window
        self._rows_per_partition = rows_per_partition
        held = () if groups is None else (Condition("consumer_group", AMONG, tuple(groups)),)
        self.asked = sql_arrow.LedgerQuery(
            ledger=table,
            prefix=prefix,
            columns=tuple(schema_of(table, columns).names),
            conditions=held,
            share=share,
        )

    def partitions(self) -> Sequence[InputPartition]:
        return self.partitions_of(self._window)

    def partitions_of(
        self, window: sql_ranges.IdWindow | sql_ranges.ChangeWindow
    ) -> list[InputPartition]:
        """Return the partitions of a window of the table.

        Raises:
            ConfigurationError: the table does not exist or is of an older release, or the window
                is by time of change, but the rows do not have this time.
        """
        ledger, prefix = self.asked.ledger, self.asked.prefix
        check_ledgers(self._url, prefix, {ledger: stored_columns(self.asked.columns)})
        if any(
            each.column == "message_id" and each.operator in _POINTS
            for each in self.asked.conditions
        ):
            return [InputPartition(EVERYTHING)]  # an index finds the few rows
        ranges = sql_ranges.key_ranges(self._url, ledger, prefix, window, self._rows_per_partition)
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from sql_arrow.read(self._url, replace(self.asked, part=partition.value))


class FilteringTableReader(TableReader):
    """Lets the database apply a query's filters (`pushFilters`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Store the conditions of the filters, and let Spark apply all filters again."""
        table = table_of(self.asked.ledger, self.asked.prefix)
        stored = [name for name in schema_of(self.asked.ledger).names if name in table.c]
        held = conditions_of(filters, schema_of(self.asked.ledger, stored))
        self.asked = replace(self.asked, conditions=(*self.asked.conditions, *held))
        return filters
