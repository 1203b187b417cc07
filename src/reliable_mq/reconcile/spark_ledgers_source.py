"""All ledgers of a reconciliation as one Spark data source, `reliable_mq_ledgers`.

Spark starts processes of its own to plan every Python data source; with few messages they cost more
than the reading. So the job reads one source with the partitions of three: each row is of one
ledger, in the shape in which the job brings messages together.

Options: `url`, `prefix`, `idFrom`, `idTo` as of `spark_table_source`; `path` as of
`spark_log_source`. Columns: `message_id`, and one of `stub`, `log` and `record`, the others null.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.reconcile import file_store, sql_ledger
from reliable_mq.reconcile.source_options import option
from reliable_mq.reconcile.spark_log_source import LOG_SCHEMA, LogReader
from reliable_mq.reconcile.spark_table_source import TableReader

LEDGERS_FORMAT = "reliable_mq_ledgers"
STUB, LOG, RECORD = "stub", "log", "record"
# In the order in which the records of a message are sorted: as they lie in the log.
RECORD_FIELDS = (
    *("commit_log_offset", "role", "topic", "consumer_group", "queue_topic", "queue_id"),
    *("queue_offset", "size", "reconsume_times", "delay_level", "born_time", "store_time"),
    *("body_size", "body_crc", "content_crc", "reason"),
)
_TYPES = {
    STUB: pa.struct(list(sql_ledger.arrow_schema(sql_ledger.STUB, with_content=False))),
    LOG: pa.struct(list(sql_ledger.arrow_schema(sql_ledger.CONSUME_LOG, with_content=False))),
    RECORD: pa.struct([LOG_SCHEMA.field(name) for name in RECORD_FIELDS]),
}
LEDGERS_SCHEMA = pa.schema([("message_id", pa.string()), *_TYPES.items()])


class LedgersSource(DataSource):
    """Stubs, consume logs and the commit log, one row each; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LEDGERS_FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(LEDGERS_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return LedgersReader(
            {
                STUB: self._table(sql_ledger.STUB),
                LOG: self._table(sql_ledger.CONSUME_LOG),
                RECORD: LogReader(option(self.options, "path"), file_store.SPLIT_SIZE, True),
            }
        )

    def _table(self, name: str) -> TableReader:
        return TableReader(
            url=option(self.options, "url"),
            table=name,
            prefix=option(self.options, "prefix", "rmq_"),
            window=sql_ledger.IdWindow(self.options.get("idFrom"), self.options.get("idTo")),
            rows_per_partition=sql_ledger.ROWS_PER_PARTITION,
            with_content=False,
        )


class LedgersReader(DataSourceReader):
    """Reads the partitions of every ledger's own reader."""

    def __init__(self, readers: dict[str, Any]) -> None:
        self._readers = readers

    def partitions(self) -> Sequence[InputPartition]:
        return [
            InputPartition((ledger, partition))
            for ledger, reader in self._readers.items()
            for partition in reader.partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ledger, part = partition.value
        for batch in self._readers[ledger].read(part):
            yield ledger_batch(ledger, batch)


def ledger_batch(ledger: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of one ledger as rows of `LEDGERS_SCHEMA`."""
    wanted = list(_TYPES[ledger])
    rows = pa.StructArray.from_arrays([batch.column(field.name) for field in wanted], fields=wanted)
    columns = {
        name: rows if name == ledger else pa.nulls(batch.num_rows, kind)
        for name, kind in _TYPES.items()
    }
    return pa.record_batch([batch.column("message_id"), *columns.values()], schema=LEDGERS_SCHEMA)
