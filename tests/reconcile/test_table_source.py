"""The data source of tables: what a query can ask of it, by hand, in SQL, and by its filters."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, In, StringContains
from pyspark.sql.types import DataType, LongType, StringType, StructType
from sqlalchemy import create_engine, text
from tests.reconcile.ledgers import LONG_AGO, TableWriter, message_id

from reliable_mq.database.sql_schema import version_table
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.ledger_columns import STUB, schema_of
from reliable_mq.reconcile.databases.spark_table_reader import FilteringTableReader, TableReader
from reliable_mq.reconcile.databases.spark_table_source import TableSource
from reliable_mq.reconcile.databases.sql_ledger import check_tables
from reliable_mq.reconcile.runs.spark_ledgers_source import LedgersSource

COUNT = 12
NARROW = StructType().add("offset", LongType()).add("topic", StringType())


@pytest.fixture
def url(tmp_path: Path) -> str:
    tables = TableWriter(f"sqlite:///{tmp_path}/shop.db")
    for number in range(COUNT):
        topic = "orders" if number % 3 else "refunds"
        tables.stub(message_id(number), b"%d" % number, topic=topic, offset=number)
    return tables.write()


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def source(kind: type[TableSource] = TableSource, **options: str) -> TableSource:
    return kind({"table": STUB, **options})


def everything(url: str, **options: str) -> TableReader:
    asked = source(TableSource, **{"url": url, **options})
    return asked.reader(asked.schema())


def read_all(reader: TableReader) -> list[dict[str, Any]]:
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_the_columns_of_an_option_and_of_a_schema_are_read_and_no_others(url: str) -> None:
    by_option = source(url=url, columns="offset, topic")
    by_schema = source(url=url)

    schema = by_option.schema()
    assert schema.simpleString() == "struct<offset:bigint,topic:string>"
    rows = read_all(by_option.reader(schema))
    assert rows == read_all(by_schema.reader(NARROW))
    assert rows[1] == {"offset": 1, "topic": "orders"}


def test_stubs_come_with_their_content_when_it_is_asked_for(url: str) -> None:
    assert "content" not in source(url=url).schema().names
    asked = source(url=url, columns="topic", content="true")
    assert read_all(asked.reader(asked.schema()))[3] == {"topic": "refunds", "content": b"3"}


@pytest.mark.parametrize(
    ("column", "kind", "says"),
    [
        ("id", StringType(), r"'stub' has no column 'id'; there are seq"),
        ("offset", StringType(), r"'offset' of 'stub' is of type bigint, not string"),
    ],
)
def test_a_schema_that_is_not_the_tables_is_refused(
    url: str, column: str, kind: DataType, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        source(url=url).reader(StructType().add(column, kind))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "stubs"}, "no ledger is called 'stubs'"),
        ({"share": "0"}, "share"),
        ({"share": "half"}, "share"),
        ({"changedFrom": "today"}, "changedFrom"),
        ({"changedFrom": "2026-11-20", "idFrom": "01"}, "not both"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    url: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_all(everything(url, **options))


def pushed(url: str, filters: Sequence[Filter]) -> FilteringTableReader:
    reader = source(url=url, columns="offset", pushFilters="true").reader(
        StructType().add("offset", LongType())
    )
    assert isinstance(reader, FilteringTableReader)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    return reader


def test_the_database_leaves_out_what_filters_leave_out(url: str) -> None:
    """Given filters on columns that are not read themselves, then their rows do not come."""
    rows = read_all(pushed(url, [EqualTo(("topic",), "refunds"), StringContains(("tag",), "x")]))

    assert [row["offset"] for row in rows] == [0, 3, 6, 9]


def test_messages_that_are_named_are_looked_up_in_one_partition(url: str) -> None:
    named = In(("message_id",), (message_id(3), message_id(5)))
    reader = pushed(url, [named])

    assert len(reader.partitions()) == 1
    assert {row["offset"] for row in read_all(reader)} == {3, 5}


def test_a_table_of_an_older_release_is_one_line_that_says_what_to_do(url: str) -> None:
    change(url, "ALTER TABLE rmq_message_stub DROP COLUMN note")

    with pytest.raises(ConfigurationError, match=r"has no column note: .*reliable-mq migrate"):
        everything(url).partitions()
    with pytest.raises(ConfigurationError, match=r"has no column note: .*reliable-mq migrate"):
        check_tables(url, "rmq_")
    assert len(read_all(everything(url, columns="topic"))) == COUNT


def test_tables_of_an_older_revision_are_refused(url: str) -> None:
    engine = create_engine(url)
    version_table("rmq_").create(engine)
    engine.dispose()
    change(url, "INSERT INTO rmq_schema_version VALUES ('0000')")

    with pytest.raises(ConfigurationError, match=r"revision 0000.*reliable-mq migrate"):
        everything(url).partitions()


def test_what_spark_imports_to_find_the_source_imports_nothing_of_ours() -> None:
    program = (
        "import pyspark_reliable_mq_table as found, sys;"
        "print(found.DefaultSource.name(), 'reliable_mq' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert said.split() == [TableSource.name(), "False"]


def test_a_run_reads_with_the_share_that_it_is_given(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    ticks = iter(range(1_000))
    monkeypatch.setattr("reliable_mq.reconcile.databases.sql_connection.time.sleep", slept.append)
    monkeypatch.setattr(
        "reliable_mq.reconcile.databases.sql_connection.time.monotonic", lambda: next(ticks)
    )
    options = {"stores": "{}", "urls": json.dumps([url]), "share": "0.5"}
    ledgers = LedgersSource(options)
    reader = ledgers.reader(ledgers.schema())

    events: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]

    assert sum(batch.num_rows for batch in events) == COUNT
    assert set(slept) == {1.0}


@pytest.mark.spark
def test_sql_reads_a_table_that_nobody_registered(spark: SparkSession, url: str) -> None:
    """Given a session of its own, then Spark finds the source by itself, and SQL can name it; and
    one where it is registered pushes filters down to it."""
    change(url, "UPDATE rmq_message_stub SET status = 1 WHERE seq > 4")
    sessions = {"found by Spark": spark.newSession(), "registered": spark}
    for view, session in zip(("found", "registered"), sessions.values(), strict=True):
        session.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING reliable_mq_table"
            f" OPTIONS (url '{url}', table 'stub', columns 'topic,status,create_date,offset')"
        )
        rows = session.sql(
            f"SELECT topic, count(*), max(create_date) FROM {view}"
            " WHERE status = 0 AND create_date >= '2026-01-01' AND offset < 100"
            " GROUP BY topic ORDER BY topic"
        ).collect()
        found = [(topic, count) for topic, count, _ in rows]
        assert found == [("orders", 2), ("refunds", 2)], sessions
        assert rows[0][2].timestamp() == LONG_AGO.timestamp()


def test_the_schema_of_a_reader_is_that_of_its_source(url: str) -> None:
    (part, *_) = (reader := source(url=url).reader(source(url=url).schema())).partitions()

    assert next(iter(reader.read(part))).schema == schema_of(STUB)
