"""Ledgers as Parquet as files of rows, by the plainest means there are.

Tables are read row by row by SQLAlchemy, the log record by record, the consume queues unit by unit:
nothing here is of the product's readers but the decoding of one record (`log_scan`).
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy import MetaData, Table, create_engine, select
from tests.reconcile.plain_scan import scan

from reliable_mq.database.sql_confirmation_table import confirmation_table
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.reconcile.brokers.log_scan import LogRow
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, log_batch
from reliable_mq.wire.record import body_checksum

ROWS_AT_ONCE = 20_000
_UNIT = struct.Struct(">qiq")
_TYPES = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int32(),
    "BOOLEAN": pa.bool_(),
}
_TIME = pa.timestamp("us", tz="UTC")
_QUEUE = {"broker": pa.string(), "topic": pa.string(), "queue_id": pa.int32(), "offset": pa.int64()}


def write_ledgers(folder: Path, urls: Sequence[str], stores: Mapping[str, str]) -> Path:
    """Write each ledger into a folder of its own; return the folder of them all."""
    metadata = MetaData()
    tables = {
        "stubs": message_stub_table(metadata),
        "consume_logs": consume_log_table(metadata),
        "confirmations": confirmation_table(metadata, "rmq_"),
    }
    for name, table in tables.items():
        rows = (row for at, url in enumerate(urls) for row in _table_rows(url, table, at))
        types = {column.name: _type_of(column) for column in table.columns}
        if types.pop("content", None):
            types |= {"content_size": pa.int32(), "content_crc": pa.int32()}
            types["message_digest"] = pa.binary()
        _write(folder / name, rows, types | {"database": pa.int32()})
    _write_records(folder / "records", stores)
    progress = [row for broker, store in stores.items() for row in _progress(broker, Path(store))]
    _write(folder / "progress", progress, _QUEUE | {"consumer_group": pa.string()})
    begins = [row for broker, store in stores.items() for row in _begins(broker, Path(store))]
    _write(folder / "queue_begins", begins, _QUEUE)
    return folder


def _write(folder: Path, rows: Iterable[dict[str, Any]], types: Mapping[str, pa.DataType]) -> None:
    folder.mkdir(parents=True)
    schema = pa.schema(list(types.items()))
    rest = iter(rows)
    with parquet.ParquetWriter(folder / "all.parquet", schema) as writer:
        while some := list(islice(rest, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema))


def _write_records(folder: Path, stores: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    schema = pa.schema([*LOG_SCHEMA, ("broker", pa.string())])
    with parquet.ParquetWriter(folder / "all.parquet", schema) as writer:
        for broker, store in stores.items():
            for batch in _record_batches(Path(store)):
                name = pa.repeat(pa.scalar(broker), batch.num_rows)
                writer.write_batch(pa.record_batch([*batch.columns, name], schema=schema))


def _type_of(column: Any) -> pa.DataType:
    if "date" in column.name or "time" in column.name or column.name == "lease_until":
        return _TIME
    return _TYPES.get(str(column.type), pa.string())


def _table_rows(url: str, table: Table, database: int) -> Iterator[dict[str, Any]]:
    engine = create_engine(url)
    with engine.connect().execution_options(yield_per=ROWS_AT_ONCE) as connection:
        for row in connection.execute(select(table)).mappings():
            values = dict(row) | {"database": database}
            if "content" in values:
                values |= {"content_size": len(row["content"])}
                values |= {"content_crc": body_checksum(row["content"])}
                values |= {"message_digest": digest_of_stub(dict(row))}
            yield values
    engine.dispose()


def digest_of_stub(stub: Mapping[str, Any]) -> bytes:
    """Return the digest of what a stub says, as `message_digest` describes it."""
    said = json.loads(stub["properties"]) | {
        "UNIQ_KEY": stub["message_id"],
        "TAGS": stub["tag"],
        "KEYS": stub["message_key"],
        "__SHARDINGKEY": stub["ordering_key"],
        "CONTENT_TYPE": stub["content_type"],
    }
    head = stub["topic"] + "\x02"
    for name in sorted(said):
        if said[name] and name not in ("traceparent", "tracestate", "baggage"):
            head += f"{name}\x01{said[name]}\x02"
    return sha256(head.encode() + sha256(stub["content"]).digest()).digest()[:16]


def _record_batches(store: Path) -> Iterator[pa.RecordBatch]:
    for segment in sorted((store / "commitlog").iterdir()):
        rows, _, _ = scan(segment.read_bytes(), int(segment.name), check_body=True)
        yield log_batch([_stranded(row, store) for row in rows])


def _stranded(row: LogRow, store: Path) -> LogRow:
    """Return a record as it is; a first delivery whose queue is no more is stranded."""
    queue = store / "consumequeue" / (row.topic or "") / str(row.queue_id)
    return row if row.role != "first" or queue.is_dir() else row._replace(role="stranded")


def _progress(broker: str, store: Path) -> Iterator[dict[str, Any]]:
    path = store / "config" / "consumerOffset.json"
    for key, offsets in json.loads(_quoted(path.read_text()))["offsetTable"].items():
        topic, _, group = key.partition("@")
        for queue, offset in offsets.items():
            names = {"broker": broker, "consumer_group": group, "topic": topic}
            yield names | {"queue_id": int(queue), "offset": offset}


def _quoted(text: str) -> str:
    """Make JSON of what fastjson writes: the numbers of queues stand there as bare names."""
    return re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', text)


def _begins(broker: str, store: Path) -> Iterator[dict[str, Any]]:
    """Tell of each queue the first message that lies behind the log's beginning."""
    log_begin = min(int(path.name) for path in (store / "commitlog").iterdir())
    for folder in (store / "consumequeue").glob("*/*"):
        index, found = 0, None
        for path in sorted(folder.iterdir()):
            index = int(path.name) // _UNIT.size
            for at, size, _ in _UNIT.iter_unpack(path.read_bytes()):
                if found is None and (size <= 0 or (at >= log_begin and size < 0x7FFFFFFF)):
                    found = index
                index += 1
        names = {"broker": broker, "topic": folder.parent.name, "queue_id": int(folder.name)}
        yield names | {"offset": index if found is None else found}
