"""A store and a cluster as rows beyond records: queues, offsets, windows of a log, and streams."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType
from tests.reconcile.ledgers import LONG_AGO, StoreWriter, message_id
from tests.reconcile.streamed import read_all
from tests.reconcile.test_log_scan import filled

from reliable_mq.errors import ConfigurationError, StoreError
from reliable_mq.reconcile.brokers.file_pruning import can_hold
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.log_schema import STORED_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.offset_rows import OFFSET_SCHEMA, offset_batch
from reliable_mq.reconcile.brokers.spark_cluster import PullPartition
from reliable_mq.reconcile.brokers.spark_log_source import LogSource
from reliable_mq.reconcile.brokers.spark_log_stream import LogStream
from reliable_mq.reconcile.brokers.spark_topic_source import TopicSource
from reliable_mq.reconcile.brokers.spark_topic_source import can_hold as queue_can_hold
from reliable_mq.reconcile.brokers.topic_pulls import BrokerAddress
from reliable_mq.reconcile.source_filters import Condition


def rows_of(reader: DataSourceReader) -> list[dict[str, Any]]:
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]


def reader_of(source: type[LogSource], *filters: Filter, **options: str) -> DataSourceReader:
    made = source(options)
    schema = made.schema()
    assert isinstance(schema, StructType)
    reader = made.reader(schema)
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    return reader


def hourly(tmp_path: Path, count: int = 48) -> StoreWriter:
    """Return a store with a message for each of some hours, a few in each segment."""
    store = StoreWriter(tmp_path, segment_size=4 * 1024)
    for hour in range(count):
        later = LONG_AGO + timedelta(hours=hour)
        store.send(message_id(hour, later), bytes(800), queue_id=hour % 2, store_time=later)
    return store


def test_queues_are_read_as_rows_many_of_them_in_one_partition(tmp_path: Path) -> None:
    path = filled(tmp_path, count=300).write()

    together = reader_of(LogSource, path=path, part="queues")
    apart = reader_of(LogSource, path=path, part="queues", splitSize="20000")

    assert (len(together.partitions()), len(apart.partitions())) == (1, 3)
    assert rows_of(together) == rows_of(apart)
    assert len(rows_of(together)) == 300
    chosen = reader_of(LogSource, path=path, part="queues", columns="queue_offset,topic")
    assert rows_of(chosen)[0] == {"queue_offset": 0, "topic": "orders"}


def test_offsets_are_read_with_what_the_queue_holds(tmp_path: Path) -> None:
    store = filled(tmp_path, count=300)
    store.commit("payments", "orders", 1, 40)
    store.commit("payments", "gone", 0, 7)
    path = store.write()

    rows = rows_of(reader_of(LogSource, path=path, part="offsets", broker="b-1"))

    names = OFFSET_SCHEMA.names
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("b-1", "payments", "gone", 0, 7, None, None),
        ("b-1", "payments", "orders", 1, 40, 0, 100),
    ]
    assert offset_batch(None, {}, {}).num_rows == 0


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigurationError, match="one of records, queues, offsets, not 'index'"):
        LogSource({"path": ".", "part": "index"}).schema()


@pytest.mark.parametrize(
    ("condition", "first", "last"),
    [
        (GreaterThanOrEqual(("store_time",), LONG_AGO + timedelta(hours=30)), 30, 47),
        (GreaterThan(("store_time",), LONG_AGO + timedelta(hours=30)), 31, 47),
        (LessThan(("store_time",), LONG_AGO + timedelta(hours=5)), 0, 4),
        (LessThanOrEqual(("store_time",), LONG_AGO + timedelta(hours=5)), 0, 5),
        (EqualTo(("store_time",), LONG_AGO + timedelta(hours=20)), 20, 20),
        (EqualTo(("message_id",), message_id(20, LONG_AGO + timedelta(hours=20))), 20, 20),
        (In(("message_id",), (message_id(3, LONG_AGO + timedelta(hours=3)),)), 3, 3),
    ],
)
def test_a_filter_gives_its_rows_and_reads_what_can_hold_them(
    tmp_path: Path, condition: Filter, first: int, last: int
) -> None:
    path = hourly(tmp_path).write()

    reader = reader_of(LogSource, condition, path=path, pushFilters="true")

    hours = [(row["store_time"] - LONG_AGO) / timedelta(hours=1) for row in rows_of(reader)]
    assert hours == list(range(first, last + 1))
    every = len(read_layout(path).partitions)
    if "store_time" in condition.attribute:  # type: ignore[attr-defined]
        assert len(reader.partitions()) <= (last - first + 1) / 4 + 3 < every
    else:
        assert len(reader.partitions()) == every


@pytest.mark.parametrize("operator", ["=", "<", "<=", ">", ">="])
def test_a_place_in_the_log_chooses_its_partitions(tmp_path: Path, operator: str) -> None:
    """Given any place, then the partitions that are left out hold no record that is asked for."""
    layout = read_layout(hourly(tmp_path).write())
    for place in (0, 5000, 8192, layout.sure_end, layout.sure_end * 2):
        chosen = can_hold(layout.partitions, [Condition("commit_log_offset", operator, place)])

        for part in set(layout.partitions) - set(chosen):
            within = {
                "=": part.start <= place < part.stop,
                "<": part.start < place,
                "<=": part.start <= place,
                ">": place < part.stop - 1,
                ">=": place < part.stop,
            }
            assert not within[operator]


def test_a_clock_that_was_set_back_hides_no_record(tmp_path: Path) -> None:
    """Given records stored some minutes before the ones they follow, then they are found."""
    store = StoreWriter(tmp_path, segment_size=4 * 1024)
    for number in range(40):
        minute = number if number % 8 else number - 50
        store.send(message_id(number), bytes(900), store_time=LONG_AGO + timedelta(minutes=minute))
    path = store.write()
    since = GreaterThanOrEqual(("store_time",), LONG_AGO + timedelta(minutes=25))
    before = LessThan(("store_time",), LONG_AGO - timedelta(minutes=20))

    assert len(rows_of(reader_of(LogSource, since, path=path, pushFilters="true"))) == 14
    assert len(rows_of(reader_of(LogSource, before, path=path, pushFilters="true"))) == 4


def test_a_cluster_is_asked_only_for_queues_that_can_hold_what_is_wanted() -> None:
    queue = PullPartition(BrokerAddress("b-1", "h:1"), "%DLQ%payments", 3, 0, 9, ())

    for column, value in (("broker", "b-1"), ("queue_topic", "%DLQ%payments"), ("queue_id", 3)):
        assert queue_can_hold(queue, [Condition(column, "=", value)])
        assert not queue_can_hold(queue, [Condition(column, "in", ("other", 4))])
    assert queue_can_hold(queue, [Condition("topic", "=", "orders"), Condition("size", ">", 3)])
    source = TopicSource({"namesrv": "127.0.0.1:1", "columns": "message_id"})
    assert source.schema().simpleString() == "struct<message_id:string>"


def stream_of(path: str, **more: Any) -> LogStream:
    schema = columns_of(["message_id", "broker"], STORED_SCHEMA)
    options = {"check_body": False, "broker": "b", "from_begin": True, "fails_on_loss": True}
    return LogStream(path, 1 << 20, schema, **{**options, **more})


def ids_between(stream: LogStream, start: dict[str, int], end: dict[str, int]) -> list[str]:
    return [
        row["message_id"]
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def test_a_stream_gives_each_record_once_however_the_log_grows(tmp_path: Path) -> None:
    """Given a log that grows over the end of segments, then each batch is what came since the last
    one, and the same when it is read again later."""
    store = StoreWriter(tmp_path, segment_size=4 * 1024)
    stream = stream_of(str(tmp_path))
    (tmp_path / "lock").write_text("")
    start = stream.initialOffset()
    batches: list[tuple[dict[str, int], dict[str, int], list[str]]] = []
    for round_ in range(6):
        for number in range(round_):
            store.send(message_id(round_ * 10 + number), bytes(900))
        store.write()
        end = stream.latestOffset(start)
        batches.append((start, end, ids_between(stream, start, end)))
        start = end

    expected = [[message_id(r * 10 + n) for n in range(r)] for r in range(6)]
    assert [ids for _, _, ids in batches] == expected
    assert [ids_between(stream, begin, end) for begin, end, _ in batches] == expected
    assert stream_of(str(tmp_path), from_begin=False).initialOffset() == start
    assert stream.latestOffset({"log_offset": 10**9}) == {"log_offset": 10**9}


def test_a_stream_does_not_pass_over_what_was_removed_unread(tmp_path: Path) -> None:
    store = hourly(tmp_path, 12)
    path = store.write()
    stream = stream_of(path)
    start, end = stream.initialOffset(), stream.latestOffset()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()

    with pytest.raises(StoreError, match="begins at 4096 now: bytes from 0 on were removed before"):
        stream.partitions(start, end)
    assert len(ids_between(stream_of(path, fails_on_loss=False), start, end)) == 8


@pytest.mark.spark
def test_sql_finds_the_sources_by_their_names_and_streams_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given a session that nobody registered anything with, then SQL reads the parts of a store;
    given one with the sources registered, then filters reach them if asked to, and a stream goes on
    where it ended."""
    store = hourly(tmp_path / "store")
    store.commit("payments", "orders", 1, 20)
    path = store.write()
    plain = spark.newSession()
    for part, count in (("records", 48), ("queues", 48), ("offsets", 1)):
        options = f"OPTIONS (path '{path}', part '{part}')"
        plain.sql(f"CREATE TEMPORARY VIEW {part} USING reliable_mq_log {options}")
        assert plain.sql(f"SELECT count(*) FROM {part}").collect()[0][0] == count
    assert plain.sql("SELECT queue_end FROM offsets").collect()[0][0] == 24

    late = (LONG_AGO + timedelta(hours=40)).astimezone(UTC)
    reader = spark.read.format("reliable_mq_log").option("path", path)
    found = reader.option("pushFilters", "true").load()
    found = found.where(found.store_time >= late)
    assert (found.rdd.getNumPartitions(), found.count()) == (4, 8)

    def run_stream() -> int:
        stream = spark.readStream.format("reliable_mq_log").option("path", path)
        writer = stream.option("columns", "message_id").load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        read_all(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
        return spark.read.parquet(str(tmp_path / "out")).distinct().count()

    assert run_stream() == 48
    store.send(message_id(100, datetime.now(UTC)), b"later")
    store.write()
    assert run_stream() == 49
