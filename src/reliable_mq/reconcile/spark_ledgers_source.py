"""All ledgers of a reconciliation as one Spark data source, `reliable_mq_ledgers`.

Spark starts processes of its own to plan every Python data source; with few messages they cost more
than the reading. So the job reads one source with the partitions of three: each row is of one
ledger, in the shape in which the job brings messages together.

Options: `urls` a JSON list of SQLAlchemy URLs; `toldGroups` a JSON list of the consumer groups
whose consume logs lie in none of them: what they told the database of the stub stands for these;
`prefix`, `idFrom`, `idTo` as of `spark_table_source`; `path` as of `spark_log_source`. Columns:
`message_id`, and one of `stub`, `log` and `record`, the others null.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.reconcile import file_store, sql_ledger
from reliable_mq.reconcile.log_schema import LOG_SCHEMA
from reliable_mq.reconcile.source_options import option
from reliable_mq.reconcile.spark_log_source import LogReader
from reliable_mq.reconcile.spark_table_source import TableReader

LEDGERS_FORMAT = "reliable_mq_ledgers"
STUB, LOG, RECORD = "stub", "log", "record"
# In the order in which the records of a message are sorted: as they lie in the log.
RECORD_FIELDS = (
    *("commit_log_offset", "role", "topic", "consumer_group", "queue_topic", "queue_id"),
    *("queue_offset", "size", "reconsume_times", "delay_level", "born_time", "store_time"),
    *("body_size", "body_crc", "content_crc", "reason", "due_time"),
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
        path = option(self.options, "path")
        readers: list[tuple[str, Any]] = [(RECORD, LogReader(path, file_store.SPLIT_SIZE, True))]
        told = json.loads(option(self.options, "toldGroups", "[]"))
        for url in json.loads(option(self.options, "urls")):
            readers.append((STUB, self._table(url, sql_ledger.STUB)))
            readers.append((LOG, self._table(url, sql_ledger.CONSUME_LOG)))
            if told:
                readers.append((LOG, ToldReader(self._table(url, sql_ledger.TOLD, told))))
        return LedgersReader(readers)

    def _table(self, url: str, name: str, groups: Sequence[str] | None = None) -> TableReader:
        return TableReader(
            url=url,
            table=name,
            prefix=option(self.options, "prefix", "rmq_"),
            window=sql_ledger.IdWindow(self.options.get("idFrom"), self.options.get("idTo")),
            rows_per_partition=sql_ledger.ROWS_PER_PARTITION,
            groups=groups,
        )


class LedgersReader(DataSourceReader):
    """Reads the partitions of every ledger's own reader."""

    def __init__(self, readers: Sequence[tuple[str, Any]]) -> None:
        self._readers = readers

    def partitions(self) -> Sequence[InputPartition]:
        return [
            InputPartition((number, partition))
            for number, (_, reader) in enumerate(self._readers)
            for partition in reader.partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, part = partition.value
        ledger, reader = self._readers[number]
        for batch in reader.read(part):
            yield ledger_batch(ledger, batch)


class ToldReader:
    """Reads what consumer groups told as if it were their consume log.

    Such a row has no place in a queue and no owner, and its attempts are not known.
    """

    def __init__(self, told: TableReader) -> None:
        self._told = told

    def partitions(self) -> Sequence[InputPartition]:
        return self._told.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._told.read(partition):
            yield _as_logs(batch)


def _as_logs(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = sql_ledger.arrow_schema(sql_ledger.CONSUME_LOG, with_content=False)
    known = {name: batch.column(name) for name in batch.schema.names}
    state = known["state"].to_pylist()
    told_at = known["update_date"].to_pylist()
    consumed = [at if each else None for each, at in zip(state, told_at, strict=True)]
    known["consume_date"] = pa.array(consumed, type=schema.field("consume_date").type)
    columns = [
        known[field.name] if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def ledger_batch(ledger: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of one ledger as rows of `LEDGERS_SCHEMA`."""
    wanted = list(_TYPES[ledger])
    rows = pa.StructArray.from_arrays([batch.column(field.name) for field in wanted], fields=wanted)
    columns = {
        name: rows if name == ledger else pa.nulls(batch.num_rows, kind)
        for name, kind in _TYPES.items()
    }
    return pa.record_batch([batch.column("message_id"), *columns.values()], schema=LEDGERS_SCHEMA)
