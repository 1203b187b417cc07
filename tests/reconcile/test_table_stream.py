"""What is changed in a table as a stream: every change once, none that commits late left out."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import create_engine, text
from tests.reconcile.ledgers import TableWriter, message_id
from tests.reconcile.streamed import read_all

from reliable_mq.reconcile.databases.spark_table_source import TableSource
from reliable_mq.reconcile.databases.spark_table_stream import MARGIN, TableStream
from reliable_mq.reconcile.databases.sql_visibility import visible_until

A_MINUTE = timedelta(minutes=1)


def stream(url: str, table: str = "stub", **options: str) -> TableStream:
    source = TableSource({"url": url, "table": table, "columns": "message_id", **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, TableStream)
    return made


def batch(reader: TableStream, start: dict[str, str], end: dict[str, str]) -> list[str]:
    return sorted(
        row["message_id"]
        for part in reader.partitions(start, end)
        for each in reader.read(part)
        for row in each.to_pylist()
    )


def touch(url: str, number: int, at: datetime, **columns: Any) -> None:
    engine = create_engine(url)
    changes = {"update_date": at.astimezone(UTC).replace(tzinfo=None).isoformat(" "), **columns}
    said = ", ".join(f"{name} = '{value}'" for name, value in changes.items())
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE rmq_message_stub SET {said} WHERE message_id = '{message_id(number)}'")
        )
    engine.dispose()


def test_a_stream_begins_with_all_and_goes_on_with_what_was_changed(tmp_path: Path) -> None:
    """Given stubs that are settled, that wait, and that wait for a person, then all kinds come."""
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    for number, (status, given_up) in enumerate([(1, False), (0, False), (0, True), (2, False)]):
        given: dict[str, Any] = {"status": status, "given_up": given_up, "resend_time": long_ago}
        tables.stub(message_id(number), update_date=long_ago, **given)
    url = tables.write()
    reader = stream(url)

    begin = reader.initialOffset()
    first = reader.latestOffset(begin, None)
    assert batch(reader, begin, first) == [message_id(number) for number in range(4)]

    until = datetime.fromisoformat(first["changed_until"])
    for number in (1, 2, 3):
        touch(url, number, until + A_MINUTE)
    second = {"changed_until": (until + 2 * A_MINUTE).isoformat()}
    assert batch(reader, first, second) == [message_id(number) for number in (1, 2, 3)]
    assert batch(reader, second, second) == []


def test_a_stream_may_begin_later(tmp_path: Path) -> None:
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    tables.stub(message_id(1), update_date=datetime(2026, 1, 1, tzinfo=UTC))
    tables.stub(message_id(2), update_date=datetime(2026, 1, 3, tzinfo=UTC))
    reader = stream(tables.write(), changedFrom="2026-01-02")

    begin = reader.initialOffset()

    assert batch(reader, begin, reader.latestOffset()) == [message_id(2)]


def test_an_offset_waits_for_what_is_not_committed_and_never_goes_back(postgres_url: str) -> None:
    TableWriter(postgres_url).write()
    reader = stream(postgres_url)
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        began = connection.scalar(text("SELECT now()"))
        held = reader.latestOffset(reader.initialOffset(), None)
        later = {"changed_until": (began + A_MINUTE).isoformat()}

        assert datetime.fromisoformat(held["changed_until"]) == began - MARGIN
        assert reader.latestOffset(later, None) == later
    engine.dispose()
    assert visible_until(postgres_url) > began


@pytest.mark.spark
def test_spark_streams_a_table_batch_by_batch(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    tables.stub(message_id(1), status=1, update_date=long_ago)
    tables.stub(message_id(2), status=1, update_date=long_ago)
    url = tables.write()
    options = {"url": url, "table": "stub", "columns": "message_id,status"}
    frame = spark.readStream.format("reliable_mq_table").options(**options).load()
    seen: list[list[tuple[str, int]]] = []

    def keep(rows: DataFrame, _batch: int) -> None:
        seen.append(sorted((row.message_id, row.status) for row in rows.collect()))

    def run() -> None:
        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        read_all(writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start)

    run()
    touch(url, 2, datetime.now(UTC) - MARGIN - timedelta(microseconds=1), status=2)
    run()

    assert seen == [[(message_id(1), 1), (message_id(2), 1)], [(message_id(2), 2)]]
