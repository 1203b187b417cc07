"""Export the ledgers as Parquet: all that a reconciliation reads, so that others can check it.

Receives the locations of the ledgers. Writes a folder for any reader of Parquet, with one folder
for each ledger. Spark's own writers are used, so it may be on any file system that Spark supports.
`about` is written last: a folder without it is no export.

- `stubs`, `consume_logs`, `confirmations`: the tables without the content of messages. The column
  `database` is the number of the database, from 0.
- `records`: the records of every broker's log, with the column `broker`.
- `progress` (`broker`, `consumer_group`, `topic`, `queue_id`, `offset`): the committed offsets.
- `queue_begins` (`broker`, `topic`, `queue_id`, `offset`): the first message of each queue.
- `about`: one row with the `version` of this layout, the time when it was `exported`, the time
  before which retention has removed rows (`removed_until`), the number of `databases`, the
  `brokers`, the `managed` topics, and the largest difference of the ledgers' clocks
  (`skew_seconds`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.spark_log_source import LOG_FORMAT
from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB, TOLD
from reliable_mq.reconcile.databases.spark_table_source import TABLE_FORMAT

VERSION = 1
ABOUT, RECORDS, PROGRESS, QUEUE_BEGINS = "about", "records", "progress", "queue_begins"
TABLES = {
    "stubs": STUB,
    "consume_logs": CONSUME_LOG,
    "confirmations": TOLD,
}
_QUEUE = [("topic", pa.string()), ("queue_id", pa.int32()), ("offset", pa.int64())]
_PROGRESS = pa.schema([("broker", pa.string()), ("consumer_group", pa.string()), *_QUEUE])
_QUEUE_BEGINS = pa.schema([("broker", pa.string()), *_QUEUE])
_ABOUT = pa.schema(
    [
        ("version", pa.int32()),
        ("exported", pa.timestamp("us", tz="UTC")),
        ("removed_until", pa.timestamp("us", tz="UTC")),
        ("databases", pa.int32()),
        ("brokers", pa.list_(pa.string())),
        ("managed", pa.list_(pa.string())),
        ("skew_seconds", pa.float64()),
    ]
)


def export_ledgers(
    spark: SparkSession,
    uri: str,
    *,
    urls: Sequence[str],
    prefix: str,
    stores: Mapping[str, str],
    progress: Mapping[tuple[str, str, str], Mapping[int, int]],
    now: datetime,
    skew_seconds: float = 0.0,
    removed_until: datetime | None = None,
    managed: Sequence[str] = (),
    db_share: float = 1.0,
) -> None:
    """Write all ledgers to a folder.

    Args:
        spark: a session in which the ledgers' sources are registered.
        uri: the folder to create, on any file system that Spark supports.
        urls: the URLs of the databases.
        prefix: the prefix of the table names.
        stores: broker name -> store directory. "": a broker without a name.
        progress: (broker, group, topic) -> queue id -> committed offset, read before all other
            ledgers. Otherwise a group could have passed messages that the tables do not have yet.
        skew_seconds: see `spark_job.JudgementTime`. Default 0.
        now: the time of the export, as of which it can be judged.
        removed_until: retention has removed rows before this moment only. None: none.
        managed: the topics for which a stub was ever written.
        db_share: the part of the time that a worker may read from a database. Default 1.

    Raises:
        ConfigurationError: when the folder is not empty.
    """
    _refuse_what_is_there(spark, uri)
    tables = {
        folder: [_table(spark, url, table, prefix, db_share) for url in urls]
        for folder, table in TABLES.items()
    }
    for folder, frames in tables.items():
        numbered = [each.withColumn("database", lit(at)) for at, each in enumerate(frames)]
        _union(numbered).write.parquet(f"{uri}/{folder}")
    _union([_log(spark, path, name) for name, path in stores.items()]).write.parquet(
        f"{uri}/{RECORDS}"
    )
    _small(spark, _progress(progress)).write.parquet(f"{uri}/{PROGRESS}")
    _small(spark, _queue_begins(stores)).write.parquet(f"{uri}/{QUEUE_BEGINS}")
    names = [list(stores)], [list(managed)]
    about = [[VERSION], [now], [removed_until], [len(urls)], *names, [skew_seconds]]
    _small(spark, pa.table(about, schema=_ABOUT)).write.parquet(f"{uri}/{ABOUT}")


def _refuse_what_is_there(spark: SparkSession, uri: str) -> None:
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(uri)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if files.exists(path) and len(files.listStatus(path)):
        raise ConfigurationError(f"{uri} is not empty; export to a new folder")


def _table(spark: SparkSession, url: str, table: str, prefix: str, db_share: float) -> DataFrame:
    reader = spark.read.format(TABLE_FORMAT).option("url", url).option("table", table)
    return reader.option("prefix", prefix).option("share", str(db_share)).load()


def _log(spark: SparkSession, path: str, broker: str) -> DataFrame:
    reader = spark.read.format(LOG_FORMAT).option("path", path)
    return reader.load().withColumn("broker", lit(broker))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _small(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table).coalesce(1)


def _progress(progress: Mapping[tuple[str, str, str], Mapping[int, int]]) -> pa.Table:
    rows = [
        (broker, group, topic, queue, offset)
        for (broker, group, topic), queues in progress.items()
        for queue, offset in queues.items()
    ]
    return _of_rows(rows, _PROGRESS)


def _queue_begins(stores: Mapping[str, str]) -> pa.Table:
    rows = [
        (broker, topic, queue, offset)
        for broker, store in stores.items()
        for (topic, queue), offset in file_store.read_layout(store).queue_begins.items()
    ]
    return _of_rows(rows, _QUEUE_BEGINS)


def _of_rows(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
