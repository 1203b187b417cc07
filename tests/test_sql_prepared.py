"""Statements that are compiled once say and get the same as SQLAlchemy's own execution."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    insert,
    select,
    update,
)

from reliable_mq.database.sql_prepared import PreparedStatement
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
