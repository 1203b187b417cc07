"""The changes of a table as a Spark stream: each batch has the rows changed since the last batch.

The offset is a time of the database's clock. It moves only up to the time before which all changes
are visible (`sql_visibility`). So a row whose transaction commits late is not missed. A row that
changes again comes again, with its new values. A row that changes twice between two batches comes
once.
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
# A row has the time of the process that writes it. It differs from the database's clock by at most
# half a second (`sql_clock.TOLERATED_SECONDS`).
MARGIN = timedelta(seconds=1)


class TableStream(DataSourceStreamReader):
    """Reads the changes of a table, batch by batch.

    Args:
        reader: the reader of the table. Its window is not used.
        url: the SQLAlchemy URL of the database.
        since: read changes from this moment on. None: from the beginning.
    """

    def __init__(self, reader: TableReader, url: str, since: datetime | None) -> None:
        self._reader = reader
        self._url = url
        self._since = since or datetime.fromtimestamp(0, UTC)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {_UNTIL: self._since.isoformat()}

    # Spark passes both arguments from 4.2 on, and none before.
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
        """Do nothing: Spark stores the offset."""


def _moment(offset: dict[str, str]) -> datetime:
    return datetime.fromisoformat(offset[_UNTIL])
