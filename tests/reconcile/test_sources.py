"""The ledgers as data sources: ranges of a real database, and what Spark sees of them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.reconcile.ledgers import LONG_AGO, StoreWriter, TableWriter, message_id

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.ledger_columns import (
    AUDIT,
    COLUMNS,
    CONSUME_LOG,
    CONTENT,
    STUB,
    TOLD,
)
from reliable_mq.reconcile.databases.sql_arrow import LedgerQuery, read
from reliable_mq.reconcile.databases.sql_ledger import managed_topics, stub_count_at_most
from reliable_mq.reconcile.databases.sql_ranges import ChangeWindow, IdWindow, key_ranges
from reliable_mq.reconcile.moments import first_id
from reliable_mq.reconcile.source_options import names, number, option, switch
from reliable_mq.wire.record import body_checksum

COUNT = 120
EVERYTHING = IdWindow()


def moment(index: int) -> Any:
    return LONG_AGO + timedelta(seconds=index)


@pytest.fixture
def url(database_url: str) -> str:
    """Give a database with stubs and consume logs, one of a foreign producer among them."""
    tables = TableWriter(database_url)
    for index in range(COUNT):
        identity = message_id(index, moment(index))
        topic = "orders" if index % 3 else "refunds"
        tables.stub(identity, b"%d" % index, topic=topic, create_date=moment(index))
        tables.log(identity, "payments", 1, create_date=moment(index))
    tables.log("7F0000010000" + "A" * 20, "payments", 1)
    return tables.write()


def rows(
    url: str, table: str, window: IdWindow | ChangeWindow, per_partition: int
) -> list[dict[str, Any]]:
    columns = (*COLUMNS[table], *([CONTENT] if table == STUB else []))
    return [
        row
        for part in key_ranges(url, table, "rmq_", window, per_partition)
        for batch in read(url, LedgerQuery(table, "rmq_", columns, part))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("per_partition", [17, 10_000])
def test_ranges_cover_every_row_exactly_once(url: str, per_partition: int) -> None:
    stubs = rows(url, STUB, EVERYTHING, per_partition)
    logs = rows(url, CONSUME_LOG, EVERYTHING, per_partition)

    identities = [message_id(index, moment(index)) for index in range(COUNT)]
    assert sorted(row["message_id"] for row in stubs) == identities
    assert sorted(row["message_id"] for row in logs) == [*identities, "7F0000010000" + "A" * 20]


def test_a_stub_has_its_time_its_content_and_the_contents_checksum(url: str) -> None:
    stub = rows(url, STUB, EVERYTHING, 100)[7]

    assert stub["create_date"] == moment(7)
    assert (stub["content"], stub["content_size"]) == (b"7", 1)
    assert stub["content_crc"] == body_checksum(b"7")
    assert (stub["status"], stub["offset"], stub["lease_until"]) == (0, None, None)


def test_a_window_is_a_range_of_message_ids(url: str) -> None:
    window = IdWindow(first_id(moment(100)), first_id(moment(110)))

    found = rows(url, STUB, window, 3)

    assert [row["content"] for row in found] == [b"%d" % index for index in range(100, 110)]


def test_rows_whose_id_tells_no_time_are_in_every_window(url: str) -> None:
    window = IdWindow(first_id(moment(100)), first_id(moment(110)))

    found = rows(url, CONSUME_LOG, window, 3)

    assert sorted(row["message_id"] for row in found) == [
        *(message_id(index, moment(index)) for index in range(100, 110)),
        "7F0000010000" + "A" * 20,
    ]


def test_what_was_changed_is_read_alone_or_with_all_that_is_open(database_url: str) -> None:
    tables = TableWriter(database_url)
    waits = {"resend_time": LONG_AGO}
    for index, given in enumerate(
        ({"status": 1}, {"status": 2}, waits, waits | {"given_up": True}, {"status": 1})
    ):
        old, new = message_id(index), message_id(index + 100)
        tables.stub(old, update_date=moment(index), **given)  # type: ignore[arg-type]
        tables.stub(new, update_date=moment(index + 100), **given)  # type: ignore[arg-type]
        tables.log(old, "g", 1, consume_date=moment(index))
        tables.log(new, "g", index % 2, consume_date=moment(index + 100) if index % 2 else None)
        tables.told(new, "g", 1)
    url = tables.write()

    def found(table: str, window: ChangeWindow) -> set[str]:
        read_rows = rows(url, table, window, 2)
        ids = [row["message_id"] for row in read_rows]
        assert len(set(ids)) == len(ids)
        return set(ids)

    changed = ChangeWindow(moment(101), moment(104))
    with_open = ChangeWindow(moment(101), moment(104), with_open=True)
    assert found(STUB, changed) == {message_id(index) for index in (101, 102, 103)}
    assert found(STUB, with_open) == {message_id(index) for index in (2, 3, 101, 102, 103)}
    assert found(CONSUME_LOG, changed) == {message_id(index) for index in (101, 103)}
    assert found(CONSUME_LOG, with_open) == {message_id(index) for index in range(100, 105)}
    assert len(found(TOLD, ChangeWindow(LONG_AGO, moment(1)))) == 5
    assert found(TOLD, ChangeWindow(moment(1))) == set()
    with pytest.raises(ConfigurationError, match="stub, consume_log, confirmation, not from audit"):
        key_ranges(url, AUDIT, "rmq_", changed)


def test_tables_that_are_partitioned_by_day_are_read_like_others(postgres_url: str) -> None:
    database = Database(postgres_url, prefix="rmq_", connections=1, by_day=True)
    database.create_tables()
    database.close()
    tables = TableWriter(postgres_url)
    today = datetime.now(UTC).replace(microsecond=0)
    ids = [message_id(day, today + timedelta(days=day)) for day in range(3)]
    for identity in ids:
        tables.stub(identity, status=1, update_date=today)
        tables.log(identity, "g", 1, consume_date=today)
    tables.write()

    second_day = IdWindow(ids[1], ids[2])
    for ledger in (STUB, CONSUME_LOG):
        for window, wanted in (
            (EVERYTHING, ids),
            (second_day, ids[1:2]),
            (ChangeWindow(today, None), ids),
        ):
            found = rows(postgres_url, ledger, window, 1)
            assert sorted(row["message_id"] for row in found) == wanted


def test_topics_and_size_are_known_beforehand(url: str) -> None:
    assert managed_topics(url, "rmq_") == ["orders", "refunds"]
    assert stub_count_at_most(url, "rmq_") == COUNT


def test_empty_tables_have_one_range_and_no_row(tmp_path: Path) -> None:
    url = TableWriter(f"sqlite:///{tmp_path}/empty.db").write()

    assert rows(url, STUB, EVERYTHING, 10) == []
    assert managed_topics(url, "rmq_") == []
    assert stub_count_at_most(url, "rmq_") == 0


@pytest.mark.spark
def test_spark_reads_both_sources_in_partitions(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Given a table and a log of many partitions, then Spark SQL joins them without a message of
    either missing, and options choose the window and the size of a partition."""
    store = StoreWriter(tmp_path / "store", segment_size=4 * 1024)
    for index in range(COUNT):
        store.send(message_id(index, moment(index)), b"%d" % index)
    reader = spark.read.format("reliable_mq_table").option("url", url).option("table", "stub")
    stubs = reader.option("rowsPerPartition", "24").load()
    log = spark.read.format("reliable_mq_log").option("path", store.write()).load()

    joined = stubs.join(log, "message_id").where(stubs.content_crc == log.content_crc)

    assert stubs.rdd.getNumPartitions() == 5
    assert log.rdd.getNumPartitions() > 3
    assert joined.count() == COUNT


@pytest.mark.spark
def test_a_query_leaves_no_filter_to_the_next_one_nor_to_the_other_side_of_a_union(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Given a DataFrame of which a few rows were asked for, when all of them are, then all come:
    Spark keeps what one query pushed down for every later one on the same DataFrame."""
    store = StoreWriter(tmp_path / "store")
    for index in range(COUNT):
        store.send(message_id(index, moment(index)), b"%d" % index)
    reader = spark.read.format("reliable_mq_table").option("url", url).option("table", "stub")
    stubs = reader.option("columns", "message_id,topic").load()
    log = spark.read.format("reliable_mq_log").option("path", store.write()).load()

    for ledger in (stubs, log):
        one, other = (
            ledger.where(ledger.message_id == message_id(index, moment(index))) for index in (3, 5)
        )
        assert one.union(other).count() == 2
        assert ledger.where("topic = 'orders' OR topic IS NOT NULL").count() == COUNT
        assert ledger.count() == COUNT


@pytest.mark.spark
def test_a_query_of_the_log_reads_only_the_columns_that_were_chosen(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given columns chosen by an option or by a schema, then the source has these and no other."""
    store = StoreWriter(tmp_path / "store")
    for index in range(COUNT):
        store.send(message_id(index, moment(index)), b"%d" % index)
    reader = spark.read.format("reliable_mq_log").option("path", store.write())

    chosen = reader.option("columns", "body, broker, message_id").option("broker", "b-1").load()
    told = reader.schema("queue_offset bigint, message_id string").load()

    assert chosen.columns == ["body", "broker", "message_id"]
    rows = chosen.where(f"message_id = '{message_id(7, moment(7))}'").collect()
    assert [(bytes(row.body), row.broker) for row in rows] == [(b"7", "b-1")]
    assert told.columns == ["queue_offset", "message_id"]
    found = told.where("queue_offset = 100").collect()
    assert [row.message_id for row in found] == [message_id(100, moment(100))]
    for schema, what in (
        ("nonsense int", "no such column"),
        ("size int", "size is bigint, not int"),
    ):
        with pytest.raises(Exception, match=what):
            reader.schema(schema).load().collect()


def test_names_are_listed_with_commas_between_them() -> None:
    assert names({"columns": "a, b"}, "columns", ()) == ["a", "b"]
    assert names({}, "columns", ("c",)) == ["c"]
    for text in ("", "a,,b", "a,b,a"):
        with pytest.raises(ConfigurationError, match="takes names separated by commas"):
            names({"columns": text}, "columns", ())


def test_options_that_make_no_sense_are_named() -> None:
    assert (option({}, "a", "b"), number({}, "a", 3), switch({}, "a", "true")) == ("b", 3, True)
    for ask in (
        lambda: option({}, "path"),
        lambda: number({"path": "0"}, "path", 1),
        lambda: switch({"path": "maybe"}, "path", "true"),
    ):
        with pytest.raises(ConfigurationError, match="path"):
            ask()
