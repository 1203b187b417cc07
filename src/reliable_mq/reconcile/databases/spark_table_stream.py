"""What is changed in a table as a stream of Spark's: a batch is what was changed since the last.

The offset is a moment of the database's clock. It moves up to where everything is visible and no
further (`sql_visibility`), so that no row is passed by whose transaction commits late. A row that
changes again comes again, as it is then; one that changes twice between two batches comes once.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from reliable_mq.reconcile.databases.spark_table_reader import TableReader
from reliable_mq.reconcile.databases.sql_ranges import ChangeWindow
from reliable_mq.reconcile.databases.sql_visibility import visible_until

_UNTIL = "changed_until"
# Rows get the time of the process that writes them, which is within half a second of the
# database's (`sql_clock.TOLERATED_SECONDS`).
MARGIN = timedelta(seconds=1)


class TableStream(DataSourceStreamReader):
    """Reads what was changed in a table, batch by batch.

    Args:
        reader: what of the table, and how; its window is left aside.
        url: of the database, SQLAlchemy's.
        since: the moment from which on changes are read (from the beginning).
    """

    def __init__(self, reader: TableReader, url: str, since: datetime | None) -> None:
        self._reader = reader
        self._url = url
        self._since = since or datetime.fromtimestamp(0, UTC)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {_UNTIL: self._since.isoformat()}

    # Spark gives both from 4.2 on, before that neither.
    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: dict[str, str] | None = None,
        limit: Any = None,  # noqa: ARG002 - there is none: a batch has all that is visible
    ) -> dict[str, str]:
        reached = _moment(start) if start else self._since
        return {_UNTIL: max(reached, visible_until(self._url) - MARGIN).isoformat()}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return self._reader.partitions_of(ChangeWindow(_moment(start), _moment(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._reader.read(partition)

    def commit(self, end: dict[str, str]) -> None:
        """Spark keeps the offset; the table does not know of its readers."""


def _moment(offset: dict[str, str]) -> datetime:
    return datetime.fromisoformat(offset[_UNTIL])
