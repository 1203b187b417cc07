"""What each kind of database is told to insert, over connections that keep the statements.

PostgreSQL and MySQL run the suite of the consume log. Here it is said without them.
"""

from typing import Any

import pytest
from sqlalchemy import MetaData
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.sql_consume_log import SqlConsumeLog
from reliable_mq.idempotency.sql_log_inserts import inserts_of

TOLD = SqlConsumeLog.told_of_failure
TABLE = consume_log_table(MetaData(), "rmq_")


def row(name: str, **columns: Any) -> dict[str, Any]:
    given = {
        "consumer_group": "g",
        "message_id": name,
        "topic": f"t-{name}",
        "state": 0,
        "attempt": 2,
        "owner": "me",
        "lease_until": None,
        "in_doubt": False,
    }
    return given | columns


class Result(list[Any]):
    """Rows, and how many were changed."""

    def __init__(self, rows: Any = (), rowcount: int = 1) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def all(self) -> "Result":
        return self

    def scalars(self) -> list[Any]:
        return [each[0] for each in self]


class Connection:
    """Keeps the text and the values of statements; answers with what it is given, in turn."""

    def __init__(self, dialect: Any, *answers: Result | Exception) -> None:
        self.dialect = dialect
        self.answers = list(answers)
        self.said: list[tuple[str, Any]] = []

    def execute(self, statement: Any, values: Any) -> Result:
        first = values[0] if isinstance(values, list) else values
        compiled = statement.compile(dialect=self.dialect, column_keys=list(first))
        for each in values if isinstance(values, list) else [values]:
            compiled.construct_params(each)  # each parameter has a value
        return self.exec_driver_sql(str(compiled), values)

    def exec_driver_sql(self, text: str, values: Any) -> Result:
        self.said.append((" ".join(text.split()), values))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def on_mysql(*answers: Result | Exception) -> tuple[Any, Any]:
    dialect = mysql.dialect()
    return inserts_of(TABLE, "message_id", "mysql", TOLD), Connection(dialect, *answers)


def on_postgresql(*answers: Result | Exception) -> tuple[Any, Any]:
    dialect: Any = psycopg.dialect()  # type: ignore[no-untyped-call]
    return inserts_of(TABLE, "message_id", "postgresql", TOLD), Connection(dialect, *answers)


def duplicate(code: int = 1062) -> Exception:
    return IntegrityError("", None, Exception(code, "Duplicate entry"))


@pytest.mark.parametrize(("answer", "is_ours"), [(Result(), True), (duplicate(), False)])
def test_on_mysql_a_failed_insert_says_that_a_row_was_there(answer: Any, is_ours: bool) -> None:
    inserts, connection = on_mysql(answer, answer)
    assert inserts.one(connection, row("a")) is is_ours
    assert inserts.all(connection, [row("a"), row("b")]) is is_ours
    (one, _), (several, values) = connection.said
    assert one.startswith("INSERT INTO rmq_consume_log (")
    assert one == several
    assert "DUPLICATE" not in one
    assert values == [row("a"), row("b")]


def test_on_mysql_another_failure_is_raised() -> None:
    inserts, connection = on_mysql(duplicate(1452))
    with pytest.raises(IntegrityError):
        inserts.one(connection, row("a"))


def test_on_mysql_rows_that_were_there_are_locked_and_told_from_ours_by_owner_and_state() -> None:
    there = [("a", "me", 0), ("b", "them", 0), ("c", "me", 1)]
    inserts, connection = on_mysql(Result(), Result(there))
    assert inserts.some(connection, [row("c"), row("b"), row("a")]) == {"a"}
    (inserted, rows), (asked, values) = connection.said
    assert inserted.startswith("INSERT INTO rmq_consume_log (")
    assert "ON DUPLICATE KEY UPDATE state = rmq_consume_log.state" in inserted
    assert rows == [row("c"), row("b"), row("a")]
    assert asked.startswith(
        "SELECT rmq_consume_log.message_id, rmq_consume_log.owner, rmq_consume_log.state FROM"
    )
    assert "rmq_consume_log.consumer_group = %s AND rmq_consume_log.message_id IN" in asked
    assert values == {"group": "g", "ids": ["a", "b", "c"]}


@pytest.mark.parametrize("changed", [0, 1])
def test_on_mysql_a_failure_makes_the_row_and_then_changes_it(changed: int) -> None:
    inserts, connection = on_mysql(Result(), Result(rowcount=changed))
    failed = row("a", owner=None, in_doubt=True) | {name: f"new {name}" for name in TOLD}
    listed = failed | {"failures": "one more line"}
    assert inserts.insert_failed(connection, listed, "me") is bool(changed)
    (inserted, first), (updated, values) = connection.said
    assert "ON DUPLICATE KEY UPDATE state = rmq_consume_log.state" in inserted
    assert first == failed
    assert values == {
        "group": "g",
        "this": "a",
        "new_attempt": 2,
        "new_doubt": True,
        "token": "me",
        "line": "one more line",
        **{f"new_{name}": f"new {name}" for name in TOLD},
    }
    assert updated.startswith("UPDATE rmq_consume_log SET")
    assert (
        "attempt=CASE WHEN (%s > rmq_consume_log.attempt) THEN %s ELSE rmq_consume_log.attempt END"
        in updated
    )
    assert "owner=NULL" in updated
    assert "in_doubt=CASE WHEN %s THEN true ELSE rmq_consume_log.in_doubt END" in updated
    assert all(f"{name}=%s" in updated for name in TOLD)
    assert "concat(coalesce(rmq_consume_log.failures, %s), %s)" in updated
    assert updated.endswith(
        "WHERE rmq_consume_log.consumer_group = %s AND rmq_consume_log.message_id = %s AND"
        " rmq_consume_log.state = %s AND (rmq_consume_log.owner IS NULL OR"
        " rmq_consume_log.owner = %s)"
    )


def test_on_postgresql_several_rows_are_one_array_for_each_column_that_differs() -> None:
    inserts, connection = on_postgresql(Result([("a",)]), Result([("a",), ("b",)]))
    rows = [row("a", attempt=1), row("b", attempt=3)]
    assert inserts.some(connection, rows) == {"a"}
    assert inserts.all(connection, rows) is True
    (text, values), again = connection.said
    assert values == {
        "consumer_group": "g",
        "state": 0,
        "lease_until": None,
        "message_id": ["a", "b"],
        "topic": ["t-a", "t-b"],
        "attempt": [1, 3],
        "owner": ["me", "me"],
        "in_doubt": [False, False],
    }
    assert again[0] == text
    assert text.startswith("INSERT INTO rmq_consume_log (consumer_group, message_id, topic, ")
    assert "unnest(" in text
    assert text.endswith("ON CONFLICT DO NOTHING RETURNING rmq_consume_log.message_id")


def test_on_postgresql_one_row_is_inserted_alone() -> None:
    inserts, connection = on_postgresql(Result(), Result(rowcount=0), Result(rowcount=0))
    assert inserts.some(connection, [row("a")]) == {"a"}
    assert inserts.some(connection, [row("b")]) == set()
    assert inserts.all(connection, [row("c")]) is False
    assert [values["message_id"] for _, values in connection.said] == ["a", "b", "c"]
    assert all(text.endswith("ON CONFLICT DO NOTHING") for text, _ in connection.said)


def test_rows_with_other_columns_have_a_statement_of_their_own() -> None:
    inserts, connection = on_postgresql(*(Result([]) for _ in range(4)))
    for more in ({}, {"confirm_to": "t", "confirm_time": None}):
        inserts.one(connection, row("a", **more))
        inserts.some(connection, [row("a", **more), row("b", **more)])
    texts = [text for text, _ in connection.said]
    assert ["confirm_to" in text for text in texts] == [False, False, True, True]


@pytest.mark.parametrize("dialect", ["mariadb", "sqlite", "postgresql", "mysql"])
def test_databases_that_are_supported(dialect: str) -> None:
    assert inserts_of(TABLE, "message_id", dialect, TOLD)


@pytest.mark.parametrize("dialect", ["oracle", "mssql", ""])
def test_databases_that_are_not(dialect: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the database '{dialect}' is not supported"):
        inserts_of(TABLE, "message_id", dialect, TOLD)


def test_where_failures_leave_no_row_nothing_is_updated() -> None:
    """A business key is released when its message fails."""
    inserts = inserts_of(TABLE, "message_id", "postgresql", ())
    connection: Any = on_postgresql(Result())[1]
    inserts.insert_failed(connection, row("a"), "me")
    assert "ON CONFLICT" not in connection.said[0][0]
