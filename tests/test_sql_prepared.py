"""Statements that are compiled once say and get the same as SQLAlchemy's own execution."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import psycopg
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


OFTEN = 8
"""More executions than psycopg wants to see before it prepares a statement."""
is_often = pytest.mark.parametrize("before", [0, OFTEN], ids=["new", "prepared"])


def repeat(connection: Connection, times: int) -> None:
    """Execute a statement some times."""
    for number in range(times):
        assert WITH_ID.change(connection, {"id": 100 + number}) == 1


def names_in(connection: Connection) -> list[str]:
    """Return the texts of the statements that are prepared on a connection."""
    return list(
        connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars()
    )


@is_often
def test_a_refused_statement_raises_what_sqlalchemy_would_raise(below: Engine, before: int) -> None:
    seen: list[type[BaseException]] = []
    event.listen(below, "handle_error", lambda found: seen.append(type(found.original_exception)))
    with below.connect() as connection, connection.begin() as transaction:
        repeat(connection, before)
        WITH_ID.change(connection, {"id": 1})
        with pytest.raises(IntegrityError, match="prepared_row_pkey") as raised:
            WITH_ID.change(connection, {"id": 1})
        assert raised.value.params is not None
        transaction.rollback()
        assert not connection.invalidated
    assert [each.__name__ for each in seen] == ["UniqueViolation"]


@is_often
def test_a_lost_connection_is_noticed_below_as_above(below: Engine, before: int) -> None:
    with below.connect() as connection, below.connect() as other:
        connection.begin()
        repeat(connection, before)
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 60000)")
        with pytest.raises(DBAPIError) as raised:
            WITH_ID.change(connection, {"id": 1})
        assert raised.value.connection_invalidated
        assert connection.invalidated
    assert isinstance(raised.value, OperationalError)
    assert raised.value.__cause__ is raised.value.orig
    if before:  # libpq tells its last answer: that there is no connection
        assert "server closed the connection" in str(raised.value)
        return
    assert getattr(raised.value.orig, "sqlstate", None) == "57P01"
    assert "terminating connection due to administrator command" in str(raised.value)


@is_often
def test_a_connection_that_the_driver_has_closed_is_noticed_below_as_above(
    below: Engine, before: int
) -> None:
    with below.connect() as connection:
        connection.begin()
        repeat(connection, before)
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


def test_who_executes_statements_in_place_of_the_driver_gets_these_too(below: Engine) -> None:
    seen: list[str] = []
    event.listen(below, "do_execute", lambda _c, statement, _p, _x: seen.append(statement))
    with below.begin() as connection:
        WITH_ID.change(connection, {"id": 1})
    assert [each.split()[0] for each in seen] == ["INSERT"]


# below SQLAlchemy, by libpq and the name of the prepared statement


def test_a_statement_that_is_often_executed_is_prepared_once_and_says_the_same(
    below: Engine,
) -> None:
    with below.begin() as connection:
        numbers = [
            INSERT_RETURNING.value(
                connection, ROW | {"body": b"\0\xff" * number, "name": f"{number}"}
            )
            for number in range(2 * OFTEN)
        ]
        changed = [RENAME.change(connection, {"this": each}) for each in [*numbers[1:], -1]]
        inserts = [each for each in names_in(connection) if each.startswith("INSERT")]
    with below.connect() as connection:
        found = connection.execute(select(rows).order_by(rows.c.id)).all()

    assert changed == [1] * (2 * OFTEN - 1) + [0]
    assert len(inserts) == 1
    assert [tuple(row) for row in found] == [
        (each, "b%s:c" if number else "0", b"\0\xff" * number, NOON, 7)
        for number, each in enumerate(numbers)
    ]


def test_a_prepared_statement_has_no_cursor(below: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with below.begin() as connection:
        repeat(connection, OFTEN)
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Cursor, "execute", no_cursor)
            patch.setattr(psycopg.RawCursor, "execute", no_cursor)
            assert WITH_ID.change(connection, {"id": 1}) == 1


def no_cursor(*_given: object) -> None:
    """Stand for `execute` of psycopg's cursors, where none is expected."""
    pytest.fail("a cursor was used")


class Watched(psycopg.Cursor[Any]):
    """A cursor of a tracer."""

    seen: ClassVar[list[str]] = []

    def execute(self, query: Any, *given: Any, **more: Any) -> Any:
        """Note the statement."""
        self.seen.append(str(query))
        return super().execute(query, *given, **more)


class Wrapped(psycopg.Connection[Any]):
    """A connection that makes cursors of its own."""

    def cursor(self, *_given: Any, **_more: Any) -> Any:
        """Return a cursor of a tracer."""
        return Watched(self)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_whoever_makes_the_cursors_of_a_connection_sees_every_statement(
    postgres_url: str, is_wrapped: bool
) -> None:
    url = postgres_url.replace("+psycopg", "")
    make = Wrapped if is_wrapped else psycopg.Connection[Any]
    engine = create_engine(postgres_url, creator=lambda: make.connect(url))
    metadata.create_all(engine)
    run_on_driver(engine)
    with engine.begin() as connection:
        if not is_wrapped:
            driver: Any = connection.connection.driver_connection
            driver.cursor_factory = Watched
        Watched.seen.clear()
        repeat(connection, 2 * OFTEN)
    engine.dispose()

    assert [each.split()[0] for each in Watched.seen].count("INSERT") == 2 * OFTEN


def test_cursors_that_prepare_nothing_are_not_passed_by(postgres_url: str) -> None:
    """Given `ClientCursor`, for a pool that knows no prepared statements, then there are none."""
    arguments = {"cursor_factory": psycopg.ClientCursor}
    engine = create_engine(postgres_url, connect_args=arguments)
    metadata.create_all(engine)
    run_on_driver(engine)
    with engine.begin() as connection:
        repeat(connection, 2 * OFTEN)
        assert not names_in(connection)
    engine.dispose()


def test_what_is_often_executed_stays_prepared_among_many_statements(below: Engine) -> None:
    with below.begin() as connection:
        repeat(connection, OFTEN)
        driver: Any = connection.connection.driver_connection
        for number in range(2 * driver.prepared_max):
            driver.execute(f"SELECT {number}", prepare=True)
            WITH_ID.change(connection, {"id": 1_000 + number})
            assert sum(each.startswith("INSERT") for each in driver_names(driver)) == 1


def driver_names(driver: Any) -> list[str]:
    """Return the texts of the statements that are prepared on a connection of the driver."""
    found = driver.execute("SELECT statement FROM pg_prepared_statements", prepare=False)
    return [text for (text,) in found]


@pytest.mark.parametrize("ending", ["ROLLBACK TO SAVEPOINT here", "DROP TABLE IF EXISTS not_there"])
def test_what_psycopg_has_forgotten_is_prepared_again(below: Engine, ending: str) -> None:
    with below.begin() as connection:
        repeat(connection, OFTEN)
        connection.exec_driver_sql("SAVEPOINT here")
        connection.exec_driver_sql(ending)
        assert not [each for each in names_in(connection) if each.startswith("INSERT")]
        for number in range(OFTEN):
            assert WITH_ID.change(connection, {"id": number}) == 1
        assert [each for each in names_in(connection) if each.startswith("INSERT")]


def test_a_rollback_of_the_whole_transaction_forgets_names_too(below: Engine) -> None:
    with below.connect() as connection:
        for _ in range(3):
            with connection.begin() as transaction:
                repeat(connection, OFTEN)
                transaction.rollback()


@is_often
@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_text_that_postgresql_refuses_raises_what_a_cursor_raises(
    below: Engine, before: int, name: str
) -> None:
    with below.connect() as connection:
        connection.begin()
        for _ in range(before):
            INSERT_RETURNING.value(connection, ROW)
        with pytest.raises(Exception, match=r"NUL|surrogates") as raised:
            INSERT_RETURNING.value(connection, ROW | {"name": name})
        connection.rollback()
    by_cursor = _raised_by_cursor(below, name)
    assert type(raised.value) is type(by_cursor)


def _raised_by_cursor(engine: Engine, name: str) -> BaseException:
    with (
        engine.connect() as connection,
        pytest.raises(Exception, match=r"NUL|surrogates") as raised,
    ):
        INSERT_RETURNING.execute(connection, ROW | {"name": name})
    return raised.value


def test_texts_arrive_over_a_connection_with_another_encoding(below: Engine) -> None:
    with below.begin() as connection:
        connection.exec_driver_sql("SET client_encoding TO latin1")
        for _ in range(OFTEN):
            number = INSERT_RETURNING.value(connection, ROW | {"name": "caf\u00e9"})
        connection.exec_driver_sql("SET client_encoding TO utf8")
        renamed = select(rows.c.name).where(rows.c.id == number)
        assert connection.execute(renamed).scalar_one() == "caf\u00e9"


def test_a_moment_of_any_zone_and_a_value_of_any_kind_arrive_by_libpq_too(below: Engine) -> None:
    there = NOON.astimezone(timezone(timedelta(hours=9)))
    with below.begin() as connection:
        for at in [*[there] * OFTEN, None, NOON]:
            number = INSERT_RETURNING.value(connection, ROW | {"at": at})
            found = connection.execute(select(rows.c.at).where(rows.c.id == number)).scalar_one()
            assert found == at
