"""Statements that are compiled once say and get the same as SQLAlchemy's own execution."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from reliable_mq.database.sql_prepared import PreparedStatement, run_on_driver
from reliable_mq.database.sql_types import UtcDateTime

metadata = MetaData()
rows = Table(
    "prepared_row",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(20), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("at", UtcDateTime),
    Column("state", Integer, nullable=False),
)
_INSERT = insert(rows).values(
    name=bindparam("name"),
    body=bindparam("body", type_=rows.c.body.type),
    at=bindparam("at", type_=rows.c.at.type),
    state=7,
)
INSERT = PreparedStatement(_INSERT)
INSERT_RETURNING = PreparedStatement(_INSERT.returning(rows.c.id))
RENAME = PreparedStatement(
    update(rows).where(rows.c.id == bindparam("this"), rows.c.state == 7).values(name="b%s:c")
)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def add(connection: Connection, values: dict[str, Any]) -> int:
    """Insert a row and return its id; MySQL has no RETURNING."""
    if connection.dialect.insert_returning:
        number: int = INSERT_RETURNING.execute(connection, values).scalar_one()
        return number
    return INSERT.execute(connection, values).lastrowid


def test_parameters_constants_and_types_arrive_as_they_should(database_url: str) -> None:
    engine = create_engine(database_url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        values = {
            "name": "a",
            "body": b"\0\xff",
            "at": NOON.astimezone(timezone(timedelta(hours=9))),
        }
        first = add(connection, values)
        second = add(connection, {"name": "a", "body": b"", "at": None})
        assert RENAME.execute(connection, {"this": first}).rowcount == 1
        assert RENAME.execute(connection, {"this": 99}).rowcount == 0
        found = connection.execute(select(rows).order_by(rows.c.id)).all()
    engine.dispose()

    assert [tuple(row) for row in found] == [
        (first, "b%s:c", b"\0\xff", NOON, 7),
        (second, "a", b"", None, 7),
    ]


def test_a_parameter_that_is_missing_is_an_error(database_url: str) -> None:
    engine = create_engine(database_url)
    metadata.create_all(engine)
    with engine.begin() as connection, pytest.raises(Exception, match="body"):
        INSERT.execute(connection, {"name": "a", "at": None})
    engine.dispose()


# below SQLAlchemy, on the driver's cursor


@pytest.fixture
def below(postgres_url: str) -> Iterator[Engine]:
    engine = create_engine(postgres_url)
    metadata.create_all(engine)
    run_on_driver(engine)
    yield engine
    engine.dispose()


ROW = {"name": "a", "body": b"", "at": NOON}
WITH_ID = PreparedStatement(insert(rows).values(id=bindparam("id"), state=7, name="", body=b""))


def test_on_the_drivers_cursor_a_statement_says_what_it_did(below: Engine) -> None:
    with below.begin() as connection:
        number = INSERT_RETURNING.value(connection, ROW)
        assert RENAME.change(connection, {"this": number}) == 1
        assert RENAME.change(connection, {"this": number + 1}) == 0
    with below.connect() as connection:
        assert connection.execute(select(rows.c.name)).scalar_one() == "b%s:c"


def test_a_refused_statement_raises_what_sqlalchemy_would_raise(below: Engine) -> None:
    seen: list[type[BaseException]] = []
    event.listen(below, "handle_error", lambda found: seen.append(type(found.original_exception)))
    with below.connect() as connection, connection.begin() as transaction:
        WITH_ID.change(connection, {"id": 1})
        with pytest.raises(IntegrityError, match="prepared_row_pkey") as raised:
            WITH_ID.change(connection, {"id": 1})
        assert raised.value.params is not None
        transaction.rollback()
        assert not connection.invalidated
    assert [each.__name__ for each in seen] == ["UniqueViolation"]


def test_a_lost_connection_is_noticed_below_as_above(below: Engine) -> None:
    with below.connect() as connection, below.connect() as other:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 60000)")
        with pytest.raises(DBAPIError) as raised:
            WITH_ID.change(connection, {"id": 1})
        assert raised.value.connection_invalidated
        assert connection.invalidated
    assert isinstance(raised.value, OperationalError)
    assert getattr(raised.value.orig, "sqlstate", None) == "57P01"
    assert raised.value.__cause__ is raised.value.orig
    assert "terminating connection due to administrator command" in str(raised.value)


def test_a_connection_that_the_driver_has_closed_is_noticed_below_as_above(below: Engine) -> None:
    with below.connect() as connection:
        connection.begin()
        driver: Any = connection.connection.driver_connection
        driver.close()
        with pytest.raises(DBAPIError, match="closed") as raised:
            WITH_ID.change(connection, {"id": 1})
        assert raised.value.connection_invalidated
        assert connection.invalidated


def test_who_listens_for_statements_sees_these_too(below: Engine) -> None:
    seen: list[str] = []
    event.listen(below, "before_cursor_execute", lambda *given: seen.append(given[2]))
    with below.begin() as connection:
        WITH_ID.change(connection, {"id": 1})
    assert [each.split()[0] for each in seen] == ["INSERT"]
