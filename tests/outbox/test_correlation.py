"""Messages of one request are found by their correlation id, whatever it is."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text

from reliable_mq import MessageQueue, ReceivedMessage, ReliableMQ
from reliable_mq.cli.found_headers import CorrelationSearch, newest_correlated
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.escalate.sql_stub_list import SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter, is_correlation_masked, without_masked
from reliable_mq.outbox.correlation import (
    column_of,
    correlation_of,
    is_correlation_name,
    kept_correlation,
)
from reliable_mq.sensitive import NOTHING_SENSITIVE, SensitiveFields

ODD = (
    *("r-17", "R-17", "r_17", "r%17", "%", "_", "r\\17", "'; DROP TABLE rmq_message_stub; --"),
    *('"><script>alert(1)</script>', "é", "e\u0301", "E\u0301", "😀", "שלום", "r-17 "),
    *(
        "x" * 255,
        "x" * 256,
        "x" * 10_000,
        "y" * 9_999 + "z",
        "é" * 300,
        "a\0b",
        "a\\x00b",
        "{'a':1}",
    ),
)


@pytest.fixture
def mq(database_url: str) -> Iterator[ReliableMQ]:
    """Give an application with tables, whose messages wait."""
    made = ReliableMQ("shop", database=database_url, broker="127.0.0.1:1", relay="shared")
    made.topic("orders", groups=["payments"])
    made.create_tables()
    yield made
    made.close()


def found(mq: ReliableMQ, correlation_id: str) -> list[str]:
    """Return what the console's search finds, and check that the filter of a list finds the same.

    A filter has at most 1,000 characters in the console; a command has no limit.
    """
    ids = CorrelationSearch(correlation_id, (), lambda _: NOTHING_SENSITIVE).ids([mq.database])
    stubs = SqlStubList(
        mq.database.stubs, mq.database.logs, StubFilter(correlation_id=correlation_id)
    )
    with mq.database.forgiving_engine.begin() as connection:
        assert [row["message_id"] for row in stubs.newest(connection, 99)] == ids
        page, last = stubs.newest_before(connection, None, 99)
        assert ([row["message_id"] for row in page], last) == (ids, None)
        assert stubs.count(connection) == len(ids)
    return ids


def test_each_odd_id_is_found_and_no_other_message_is(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"a": 1})
        sent = [tx.send("orders", {}, properties={"CORRELATION_ID": each}) for each in ODD]
    for message_id, each in zip(sent, ODD, strict=True):
        assert found(mq, each) == [message_id], each[:40]
    assert found(mq, "r-1") == found(mq, "x" * 254) == found(mq, "None") == []


def test_an_option_gives_it_and_the_newest_message_is_first(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        first = tx.send("orders", {}, correlation_id="r-17")
        orders = [{"import": 17}, {"import": 18}]
        many = tx.send_many("orders", orders, correlation_id=lambda each: each["import"])
        last = tx.send("payments", {}, correlation_id="r-17", key="4711")
        tx.send("orders", {}, correlation_id=None)
        tx.send("orders", {}, correlation_id="")
    assert found(mq, "r-17") == [last, first]
    assert [found(mq, "17"), found(mq, "18")] == [[each] for each in many]
    with mq.database.engine.connect() as connection:
        stub = mq.database.stubs.c
        kept = connection.execute(select(stub.correlation_id, stub.properties).order_by(stub.seq))
        rows: list[Any] = [tuple(row) for row in kept]
    assert rows[0] == ("r-17", '{"CORRELATION_ID": "r-17"}')
    assert rows[-2:] == [(None, "{}"), (None, "{}")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"correlation_id": "x" * 256}, "the correlation_id has 256 characters, 255 are allowed"),
        ({"correlation_id": "a\nb"}, "cannot be printed"),
        ({"correlation_id": "a\0b"}, "cannot be printed"),
        ({"correlation_id": {"a": 1}}, "a text or a number"),
        ({"correlation_id": "a", "properties": {"CORRELATION_ID": "b"}}, "leave one out"),
    ],
)
def test_what_nobody_could_find_is_refused(
    tmp_path: Any, options: dict[str, Any], says: str
) -> None:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'x.db'}", relay="shared")
    mq.create_tables()
    with pytest.raises(MessageRefused, match=says), mq.transaction() as tx:
        tx.send("orders", {}, **options)
    with mq.transaction() as tx:
        tx.send("orders", {}, correlation_id="a", properties={"CORRELATION_ID": "a"})
    mq.close()


OLD_INSERT = (
    "INSERT INTO rmq_message_stub (message_id, topic, content, content_type, properties,"
    " resend_time, create_date, update_date{more}) VALUES (:id, 'orders', :content, '',"
    " :properties, :at, :at, :at{value})"
)


def planted(connection: Connection, number: int, properties: str, kept: str | None = None) -> str:
    """Insert a stub as plain SQL does, and as a release does that has no such column."""
    message_id = f"{number:032d}"
    statement = OLD_INSERT.format(
        more="" if kept is None else ", correlation_id", value="" if kept is None else ", :kept"
    )
    at = datetime(2026, 11, 29, tzinfo=UTC)
    given: dict[str, Any] = {"id": message_id, "content": b"x", "properties": properties, "at": at}
    if connection.dialect.name == "sqlite":
        given["at"] = "2026-11-29 00:00:00.000000"
    connection.execute(text(statement), given | ({} if kept is None else {"kept": kept}))
    return message_id


def test_rows_of_plain_sql_and_of_the_release_before_are_kept(mq: ReliableMQ) -> None:
    with mq.database.engine.begin() as connection:
        planted(connection, 1, '{"CORRELATION_ID": "r-17"}')
        named = planted(connection, 2, "{}", kept="r-17")
        planted(connection, 3, "no JSON")
    assert found(mq, "r-17") == [named]
    with mq.transaction() as tx:
        newer = tx.send("orders", {}, correlation_id="r-17")
    assert found(mq, "r-17") == [newer, named]


def test_one_id_of_very_many_messages_reads_as_many_rows_as_it_shows(mq: ReliableMQ) -> None:
    table = mq.database.stubs
    now = datetime.now(UTC)
    row = {"topic": "orders", "content": b"x", "status": 1, "count": 1, "correlation_id": "batch"}
    row |= {"create_date": now, "update_date": now}
    rows = [row | {"message_id": f"{number:032d}"} for number in range(3_000)]
    rows += [row | {"message_id": f"9{number:031d}", "correlation_id": None} for number in range(9)]
    with mq.database.engine.begin() as connection:
        connection.execute(insert(table), rows)
    assert len(CorrelationSearch("batch", (), lambda _: NOTHING_SENSITIVE).ids([mq.database])) == 50
    with mq.database.engine.connect() as connection:
        plan = _plan_of(connection, newest_correlated(table, "batch"))
    assert "rmq_message_stub_correlation" in plan
    assert "SORT" not in plan.upper().replace("SORT KEY", "")
    assert "TEMP B-TREE" not in plan.upper()


def _plan_of(connection: Connection, statement: Any) -> str:
    compiled = statement.compile(connection, compile_kwargs={"literal_binds": True})
    prefix = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ANALYZE rmq_message_stub")
    rows = connection.exec_driver_sql(f"{prefix} {compiled}".replace("%", "%%"))
    return "\n".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize(
    "name",
    ["CORRELATION_ID", "correlation_id", "correlationId", "X-Correlation-ID", "CE_correlationid"],
)
def test_other_spellings_are_one(name: str) -> None:
    assert is_correlation_name(name)
    assert column_of({"a": "1", name: "r-17"}) == "r-17"
    assert column_of({name: ""}) is None


def test_the_first_spelling_counts_and_ours_before_all() -> None:
    both = {"x-correlation-id": "a", "correlationId": "b", "CORRELATION_ID": "c"}
    assert correlation_of(both) == "c"
    del both["CORRELATION_ID"]
    assert correlation_of(both) == "a"
    assert column_of({"correlation": "a", "request_id": "b"}) is None


def test_no_two_ids_are_kept_alike() -> None:
    kept = {kept_correlation(each) for each in (*ODD, "\ud800", "\\ud800")}
    assert len(kept) == len(ODD) + 2
    assert all(len(each) <= 255 and "\0" not in each for each in kept)
    assert all(each.encode() for each in kept)


def test_a_handler_reads_it_and_a_broker_need_not_know_it() -> None:
    queue = MessageQueue("orders", "a", 0)
    got = ReceivedMessage(topic="orders", body=b"", queue=queue, queue_offset=0)
    assert got.correlation_id == ""
    properties = json.loads('{"CORRELATION_ID": "r-17"}')
    got = ReceivedMessage(
        topic="orders", body=b"", queue=queue, queue_offset=0, properties=properties
    )
    assert got.correlation_id == "r-17"


def test_a_guess_at_a_masked_id_is_not_confirmed(tmp_path: Any) -> None:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'x.db'}", relay="shared")
    mq.create_tables()
    hidden = SensitiveFields(frozenset({"correlationid"}))
    of_topic = {"secret": hidden}

    def sensitive_of(topic: str) -> SensitiveFields:
        return of_topic.get(topic, NOTHING_SENSITIVE)

    with mq.transaction() as tx:
        tx.send("secret", {}, correlation_id="r-17")
        shown = tx.send("orders", {}, correlation_id="r-17")
    assert CorrelationSearch("r-17", (), sensitive_of).ids([mq.database]) == [shown]
    wanted = without_masked(StubFilter(correlation_id="r-17"), ("orders", "secret"), sensitive_of)
    assert wanted.hidden_topics == ("secret",)
    with mq.database.forgiving_engine.begin() as connection:
        rows = SqlStubList(mq.database.stubs, mq.database.logs, wanted).newest(connection, 9)
    assert [row["message_id"] for row in rows] == [shown]
    with pytest.raises(UsageError, match="masked by the setting"):
        without_masked(StubFilter(correlation_id="r-17"), (), lambda _: hidden)
    assert without_masked(StubFilter(topic="a"), (), lambda _: hidden) == StubFilter(topic="a")
    assert not is_correlation_masked(NOTHING_SENSITIVE, "r-17")
    mq.close()
