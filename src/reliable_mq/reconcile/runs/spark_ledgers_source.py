"""The Spark data source `reliable_mq_ledgers`: all ledgers of a reconciliation.

It has the partitions of all ledgers. Every row is an event (`events`), packed into three columns
(`event_rows`). The job reads the same partitions in the workers that judge (`spark_ledgers_read`).

Options:

- `urls`: a JSON list of SQLAlchemy URLs.
- `toldGroups`: a JSON list of consumer groups whose consume logs are in none of these databases.
  Their notices are read instead.
- `prefix`, `idFrom`, `idTo`, `share`: as in `spark_table_source`.
- `stores`: a JSON object: broker name -> store directory.
- `cluster`: see `spark_brokers.cluster_option`.
- `changedSince`: of an increment, ISO 8601: read only table rows that changed since, and open rows.
- `logRanges`: of an increment, a JSON object: broker name -> the range of log offsets to read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.spark_brokers import broker_of, cluster_reader
from reliable_mq.reconcile.brokers.spark_log_source import LogReader
from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB, TOLD
from reliable_mq.reconcile.databases.spark_table_reader import TableReader
from reliable_mq.reconcile.databases.sql_ranges import ChangeWindow, IdWindow
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.ledger_events import (
    LOG_COLUMNS,
    NOTICE_COLUMNS,
    RECORD_COLUMNS,
    STUB_COLUMNS,
    log_events,
    notice_events,
    record_events,
    stub_events,
)
from reliable_mq.reconcile.source_options import moment, option, share

LEDGERS_FORMAT = "reliable_mq_ledgers"
_RECORD_SCHEMA = columns_of(RECORD_COLUMNS, LOG_SCHEMA)

Adapter = Callable[[pa.RecordBatch], pa.RecordBatch]


class LedgersSource(DataSource):
    """Stubs, consume logs and commit logs as events; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return LEDGERS_FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(EVENT_ROWS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        ranges = json.loads(option(self.options, "logRanges", "{}"))
        readers: list[tuple[Any, Adapter]] = [
            (
                LogReader(
                    path, file_store.SPLIT_SIZE, True, _RECORD_SCHEMA, log_range=ranges.get(broker)
                ),
                partial(record_events, broker=broker),
            )
            for broker, path in json.loads(option(self.options, "stores")).items()
        ]
        cluster = self.options.get("cluster")
        if cluster is not None:
            readers.append((cluster_reader(cluster, RECORD_COLUMNS), _cluster_events))
        told = json.loads(option(self.options, "toldGroups", "[]"))
        for url in json.loads(option(self.options, "urls")):
            readers.append((self._table(url, STUB, STUB_COLUMNS), stub_events))
            readers.append((self._table(url, CONSUME_LOG, LOG_COLUMNS), log_events))
            if told:
                readers.append((self._table(url, TOLD, NOTICE_COLUMNS, told), notice_events))
        return LedgersReader(readers)

    def _table(
        self, url: str, name: str, columns: Sequence[str], groups: Sequence[str] | None = None
    ) -> TableReader:
        return TableReader(
            url=url,
            table=name,
            prefix=option(self.options, "prefix", "rmq_"),
            window=self._window(),
            columns=columns,
            groups=groups,
            share=share(self.options, "share"),
        )

    def _window(self) -> IdWindow | ChangeWindow:
        since = moment(self.options, "changedSince")
        if since is not None:
            return ChangeWindow(since, with_open=True)
        return IdWindow(self.options.get("idFrom"), self.options.get("idTo"))


def _cluster_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    return record_events(batch, broker_of(batch))


class LedgersReader(DataSourceReader):
    """Reads the partitions of every ledger's own reader, as events."""

    def __init__(self, readers: Sequence[tuple[Any, Adapter]]) -> None:
        self._readers = readers

    def partitions(self) -> Sequence[InputPartition]:
        return [
            InputPartition((number, partition))
            for number, (reader, _) in enumerate(self._readers)
            for partition in reader.partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, part = partition.value
        reader, events_of = self._readers[number]
        for batch in reader.read(part):
            yield event_rows(events_of(batch))
