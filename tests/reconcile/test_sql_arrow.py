"""Rows of every kind of database, by every way to read them: the same values in the same types."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, insert, text
from tests.reconcile.ledgers import LONG_AGO, TableWriter, message_id

from reliable_mq.database.sql_types import EARLIEST, LATEST
from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.reconcile.databases.ledger_columns import (
    AUDIT,
    COLUMNS,
    CONTENT,
    ESCALATION,
    FINDING,
    KEY,
    RUN,
    STUB,
    TOLD,
    schema_of,
    table_of,
)
from reliable_mq.reconcile.databases.sql_arrow import LedgerQuery, read
from reliable_mq.reconcile.databases.sql_ledger import check_tables
from reliable_mq.reconcile.source_filters import Condition
from reliable_mq.wire.record import body_checksum

A_MICROSECOND = timedelta(microseconds=1)
ODD_TEXT = "50% of 'it' \\ \"é\" 消息 :name"


def table(url: str, asked: LedgerQuery) -> pa.Table:
    """Return what is read; whether by the driver for Arrow or row by row must not matter."""
    schema = schema_of(asked.ledger, asked.columns)
    fast, slow = (
        pa.Table.from_batches(read(url, asked, by_rows=by_rows), schema)
        for by_rows in (False, True)
    )
    assert fast.equals(slow)
    return fast


def rows(url: str, asked: LedgerQuery) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(url, asked).to_pylist()
    return found


def test_every_column_comes_as_it_was_written_whatever_the_way(database_url: str) -> None:
    tables = TableWriter(database_url)
    tables.stub(message_id(1), b"\0\xff", tag=ODD_TEXT, note=None, given_up=True)
    at = LONG_AGO + A_MICROSECOND
    tables.stub(message_id(2), b"", update_date=at, offset=2**40, queue_id=7, broker_name="b")

    first, second = rows(tables.write(), LedgerQuery(STUB, "rmq_", (*COLUMNS[STUB], CONTENT)))

    assert (first["message_id"], first["tag"], first["note"]) == (message_id(1), ODD_TEXT, None)
    assert (first["content"], first["content_size"]) == (b"\0\xff", 2)
    assert first["content_crc"] == body_checksum(b"\0\xff")
    assert (first["given_up"], first["missed"], first["offset"]) == (True, False, None)
    assert (first["create_date"], first["resend_time"]) == (LONG_AGO, None)
    assert (second["update_date"], second["offset"], second["queue_id"]) == (at, 2**40, 7)
    assert (second["content"], second["content_crc"]) == (b"", body_checksum(b""))


def test_only_the_columns_that_are_asked_for_come_in_their_order(database_url: str) -> None:
    tables = TableWriter(database_url)
    tables.stub(message_id(1), b"x")

    found = table(tables.write(), LedgerQuery(STUB, "rmq_", ("offset", "content_crc", "topic")))

    assert found.schema == pa.schema(
        [("offset", pa.int64()), ("content_crc", pa.int32()), ("topic", pa.string())]
    )
    assert found.to_pylist() == [
        {"offset": None, "content_crc": body_checksum(b"x"), "topic": "orders"}
    ]


def test_what_is_null_at_first_has_its_type_later(database_url: str) -> None:
    """SQLite's driver takes the types of columns from what comes first."""
    tables = TableWriter(database_url)
    for number in range(1_100):
        tables.stub(message_id(number))
    tables.stub(message_id(1_100), owner="somebody", lease_until=LONG_AGO)

    found = rows(tables.write(), LedgerQuery(STUB, "rmq_", ("owner", "lease_until")))

    assert [row for row in found if row["owner"]] == [
        {"owner": "somebody", "lease_until": LONG_AGO}
    ]
    assert len(found) == 1_101


def every_ledger() -> Iterator[tuple[str, dict[str, Any]]]:
    seen = {"create_date": LONG_AGO, "message_id": message_id(1)}
    yield (
        KEY,
        seen
        | {
            "consumer_group": "g",
            "key_digest": "d",
            "business_key": "k",
            "state": 1,
            "attempt": 2,
            "in_doubt": True,
            "consume_date": LONG_AGO,
        },
    )
    yield ESCALATION, seen | {"kind": "stuck", "topic": "orders", "reason": "r"}
    yield AUDIT, seen | {"actor": "a", "action": "resend", "changed": 1, "detail": "{}"}
    yield (
        FINDING,
        seen | {"run_id": "r", "consumer_group": "g", "verdict": "stuck", "evidence": "{}"},
    )
    yield (
        RUN,
        {
            "run_id": "r",
            "as_of": LONG_AGO,
            "grace_seconds": 1.5,
            "store": "s",
            "verdicts": "{}",
            "ledgers": "{}",
            "findings": 2**33,
            "is_clean": False,
            "finish_date": LONG_AGO,
        },
    )
    yield (
        TOLD,
        {
            **seen,
            "consumer_group": "g",
            "state": 0,
            "notices": 3,
            "update_date": LONG_AGO,
        },
    )


def test_every_table_can_be_read(database_url: str) -> None:
    engine = create_engine(database_url)
    for name, row in every_ledger():
        ledger = table_of(name, "rmq_")
        ledger.create(engine)
        with engine.begin() as connection:
            connection.execute(insert(ledger).values(row))

        (found,) = rows(database_url, LedgerQuery(name, "rmq_", tuple(COLUMNS[name])))

        assert found.items() >= row.items()
        assert found.keys() == COLUMNS[name].keys()
    engine.dispose()


def test_an_empty_table_has_no_batch(database_url: str) -> None:
    url = TableWriter(database_url).write()

    asked = LedgerQuery(STUB, "rmq_", ("topic",))
    assert list(read(url, asked)) == list(read(url, asked, by_rows=True)) == []


def test_a_moment_that_python_cannot_hold_takes_no_other_row_along(postgres_url: str) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    read_as = {
        "infinity": LATEST,
        "-infinity": EARLIEST,
        "0044-03-15 BC": EARLIEST,
        "9999-12-31 23:59:59.999999+00": last,
        "10000-01-01+00": LATEST,
    }
    tables = TableWriter(postgres_url)
    for number in range(len(read_as)):
        tables.stub(message_id(number), tag=str(number))
    url = tables.write()
    engine = create_engine(url)
    with engine.begin() as connection:
        for number, moment in enumerate(read_as):
            values = {"at": moment, "tag": str(number)}
            connection.execute(
                text(
                    "UPDATE rmq_message_stub SET update_date = CAST(:at AS timestamptz)"
                    " WHERE tag = :tag"
                ),
                values,
            )
    engine.dispose()

    found = rows(url, LedgerQuery(STUB, "rmq_", ("tag", "update_date")))

    by_tag = {int(row["tag"]): row["update_date"] for row in found}
    assert [by_tag[number] for number in range(len(read_as))] == list(read_as.values())


def test_text_that_is_no_moment_is_read_as_the_earliest(tmp_path: Any) -> None:
    tables = TableWriter(f"sqlite:///{tmp_path}/a b%#?.db")
    tables.stub(message_id(1))
    tables.stub(message_id(2))
    url = tables.write()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE rmq_message_stub SET update_date = 'soon' WHERE seq = 1"))
    engine.dispose()

    found = rows(url, LedgerQuery(STUB, "rmq_", ("update_date",)))

    assert [row["update_date"] for row in found] == [EARLIEST, LONG_AGO]


def test_text_that_is_no_utf_8_takes_no_other_row_along(tmp_path: Any) -> None:
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    tables.stub(message_id(1))
    tables.stub(message_id(2), tag="paid")
    url = tables.write()
    engine = create_engine(url)
    with engine.begin() as connection:
        broken = "UPDATE rmq_message_stub SET tag = CAST(x'61ff62' AS TEXT) WHERE seq = 1"
        connection.execute(text(broken))
    engine.dispose()

    (batch,) = read(url, LedgerQuery(STUB, "rmq_", ("tag",)))

    assert batch.column("tag").to_pylist() == ["a\ufffdb", "paid"]


def test_conditions_leave_out_the_same_rows_everywhere(database_url: str) -> None:
    tables = TableWriter(database_url)
    for number, tag in enumerate(("B", ODD_TEXT, "a", "b")):
        tables.stub(
            message_id(number),
            tag=tag,
            offset=number,
            note="n" if number == 1 else None,
            given_up=number == 2,
            update_date=LONG_AGO + number * A_MICROSECOND,
        )
    url = tables.write()

    for condition, kept in (
        (Condition("tag", "=", ODD_TEXT), {1}),
        (Condition("tag", "in", (ODD_TEXT, "b")), {1, 3}),
        (Condition("tag", "<", "b"), {0, 1, 2}),
        (Condition("tag", ">=", "a"), {2, 3}),
        (Condition("tag", "starts with", ODD_TEXT[:4]), {1}),
        (Condition("offset", ">", 1), {2, 3}),
        (Condition("offset", "<=", 1), {0, 1}),
        (Condition("note", "is null"), {0, 2, 3}),
        (Condition("note", "is not null"), {1}),
        (Condition("given_up", "=", True), {2}),
        (Condition("update_date", ">=", LONG_AGO + 2 * A_MICROSECOND), {2, 3}),
        (Condition("update_date", "<", LONG_AGO + A_MICROSECOND), {0}),
    ):
        asked = LedgerQuery(STUB, "rmq_", ("offset",), conditions=(condition,))
        assert {row["offset"] for row in rows(url, asked)} == kept, condition


def test_a_batch_is_bounded_by_the_bytes_of_its_contents(database_url: str) -> None:
    tables = TableWriter(database_url)
    for number in range(9):
        tables.stub(message_id(number), bytes(1024 * 1024))
    url = tables.write()

    for by_rows in (False, True):
        batches = read(url, LedgerQuery(STUB, "rmq_", (CONTENT,)), by_rows=by_rows)
        sizes = [batch.nbytes for batch in batches]
        assert len(sizes) >= 2
        assert max(sizes) < 6 * 1024 * 1024


def test_reading_that_sleeps_in_between_asks_for_little_at_a_time(database_url: str) -> None:
    tables = TableWriter(database_url)
    for number in range(1000):
        tables.stub(message_id(number), bytes(1024))
    url = tables.write()

    asked = LedgerQuery(STUB, "rmq_", (CONTENT,))
    for by_rows in (False, True):
        assert len(list(read(url, replace(asked, share=0.99), by_rows=by_rows))) >= 7
        assert len(list(read(url, asked, by_rows=by_rows))) == 1


def test_reading_takes_its_share_of_the_time_and_sleeps_the_rest(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a clock that moves by a second with every look, then a quarter is three times that."""
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    tables.stub(message_id(1))
    url = tables.write()
    ticks, slept = iter(range(100)), list[float]()
    monkeypatch.setattr(
        "reliable_mq.reconcile.databases.sql_connection.time.monotonic", lambda: float(next(ticks))
    )
    monkeypatch.setattr("reliable_mq.reconcile.databases.sql_connection.time.sleep", slept.append)
    asked = LedgerQuery(STUB, "rmq_", ("topic",))

    assert len(list(read(url, replace(asked, share=0.25)))) == 1
    assert slept == [3.0]
    assert len(list(read(url, asked))) == 1
    assert slept == [3.0]


def test_who_asks_for_what_there_is_not_is_told_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"no ledger is called 'stubs'; there are stub,"):
        schema_of("stubs", None)
    with pytest.raises(ConfigurationError, match=r"'stub' has no column 'id'; there are seq, mess"):
        schema_of(STUB, ["id"])
    with pytest.raises(ConfigurationError, match="twice"):
        schema_of(STUB, ["topic", "topic"])


def test_a_database_that_is_not_there_is_one_line_without_its_password() -> None:
    url = "postgresql://somebody:secret@127.0.0.1:1/shop"

    with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
        list(read(url, LedgerQuery(STUB, "rmq_", ("topic",))))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_sqlite_file_that_is_not_there_is_not_made(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/none.db"

    with pytest.raises(Unavailable):
        list(read(url, LedgerQuery(STUB, "rmq_", ("topic",))))
    with pytest.raises(ConfigurationError, match=r"none\.db' does not exist"):
        check_tables(url, "rmq_")

    assert list(tmp_path.iterdir()) == []
