"""P1 on engines of the user's own, by every driver that SQLAlchemy has for these databases."""

import asyncio
import importlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from tests.outbox.benches import Bench

from reliable_mq.errors import ConfigurationError, UsageError

T = TypeVar("T")
INSERT = text("INSERT INTO orders VALUES (1)")


class Driver(NamedTuple):
    """A driver: SQLAlchemy's name of it, its module, and whether it is asynchronous."""

    name: str
    module: str
    is_async: bool = False


DRIVERS = [
    Driver("sqlite", "sqlite3"),
    Driver("sqlite+aiosqlite", "aiosqlite", is_async=True),
    Driver("postgresql+psycopg", "psycopg"),
    Driver("postgresql+psycopg", "psycopg", is_async=True),
    Driver("postgresql+psycopg2", "psycopg2"),
    Driver("postgresql+pg8000", "pg8000"),
    Driver("postgresql+asyncpg", "asyncpg", is_async=True),
    Driver("mysql+pymysql", "pymysql"),
    Driver("mysql+mysqldb", "MySQLdb"),
    Driver("mysql+mysqlconnector", "mysql.connector"),
    Driver("mariadb+mariadbconnector", "mariadb"),
    Driver("mysql+aiomysql", "aiomysql", is_async=True),
    Driver("mysql+asyncmy", "asyncmy", is_async=True),
]


class Users:
    """A user's own engine for the database of a bench."""

    def __init__(self, bench: Bench, driver: Driver, **options: Any) -> None:
        self._driver = driver
        url = make_url(bench.database.url).set(drivername=driver.name)
        if driver.is_async:
            self.async_engine = create_async_engine(url, **options)
            self.engine: Engine = self.async_engine.sync_engine
        else:
            self.engine = create_engine(url, **options)

    def do(self, work: Callable[[Connection], T], **options: Any) -> T:
        """Do something on a connection, whichever kind of driver it has."""
        if not self._driver.is_async:
            with self.engine.connect() as connection:
                result = work(connection.execution_options(**options))
            self.engine.dispose()
            return result

        async def scenario() -> T:
            async with self.async_engine.connect() as connection:
                await connection.execution_options(**options)
                result = await connection.run_sync(work)
            await self.async_engine.dispose()
            return result

        return asyncio.run(scenario())


@pytest.fixture(params=DRIVERS, ids=lambda each: f"{each.name}{'-async' * each.is_async}")
def driver(request: pytest.FixtureRequest) -> Driver:
    given: Driver = request.param
    try:
        importlib.import_module(given.module)
    except ImportError:
        pytest.skip(f"{given.module} is not installed")
    return given


@pytest.fixture
def bench(driver: Driver, request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Bench]:
    if driver.module in ("sqlite3", "aiosqlite"):
        url = f"sqlite:///{tmp_path / 'application.db'}"
    else:
        kind = "postgres_url" if driver.name.startswith("postgresql") else "mysql_url"
        url = request.getfixturevalue(kind)
    made = Bench(url)
    yield made
    made.database.close()


def within_savepoint(connection: Connection, how: str, block: Callable[[], None]) -> None:
    """Run a block in a savepoint that is the first thing in its transaction, and release it."""
    if how == "sql":
        connection.execute(text("SAVEPOINT ours"))
        block()
        connection.execute(text("RELEASE SAVEPOINT ours"))
    elif how == "session":
        session = Session(connection, join_transaction_mode="rollback_only")
        with session.begin_nested():
            block()
    else:
        with connection.begin_nested():
            block()


HOWS = ("connection", "session", "sql")


@pytest.mark.parametrize("first", HOWS)
def test_what_a_released_savepoint_sent_is_gone_with_the_outer_transaction(
    bench: Bench, driver: Driver, first: str
) -> None:
    """Given the default of Python's sqlite3, the RELEASE was a COMMIT."""
    if first != HOWS[0] and driver.module != "sqlite3":
        pytest.skip("the first transaction of an engine is a case of its own in SQLite only")

    def work(connection: Connection) -> None:
        def block() -> None:
            connection.execute(INSERT)
            with bench.transaction(connection) as tx:
                tx.send("orders", {"id": 1})

        for how in (first, *HOWS):
            connection.begin()
            within_savepoint(connection, how, block)
            within_savepoint(connection, how, block)
            connection.execute(INSERT)
            connection.rollback()

    Users(bench, driver).do(work)

    assert (bench.ids(), bench.orders()) == ([], 0)


def test_what_a_released_savepoint_sent_is_committed_with_the_outer_transaction(
    bench: Bench, driver: Driver
) -> None:
    sent: list[str] = []

    def work(connection: Connection) -> None:
        def block() -> None:
            with bench.transaction(connection) as tx:
                sent.append(tx.send("orders", {"id": 1}))

        for how in HOWS:
            before = len(bench.handed)
            with connection.begin():
                within_savepoint(connection, how, block)
                undone = connection.begin_nested()
                block()
                undone.rollback()
                sent.pop()
                within_savepoint(connection, how, block)
                connection.execute(INSERT)
                assert len(bench.handed) == before, "nothing is handed over before the COMMIT"

    Users(bench, driver).do(work)

    assert bench.ids() == bench.read_back() == sent
    assert (len(sent), bench.orders()) == (6, 3)


def test_an_order_before_the_message_is_gone_with_its_released_savepoint(
    bench: Bench, driver: Driver
) -> None:
    """From the second transaction on, when the engine is known to carry messages."""

    def work(connection: Connection) -> None:
        with bench.transaction(connection) as tx:
            tx.send("orders", {"id": 0}, message_id="0" * 32)
        connection.begin()
        with connection.begin_nested():
            connection.execute(INSERT)
        with bench.transaction(connection) as tx:
            tx.send("orders", {"id": 1})
        connection.rollback()

    Users(bench, driver).do(work)

    assert (bench.ids(), bench.orders()) == (["0" * 32], 0)


def send(bench: Bench, connection: Connection) -> None:
    with (
        bench.transaction(connection) as tx,
        pytest.raises(UsageError, match="AUTOCOMMIT"),
    ):
        tx.send("orders", {"id": 1})


def test_autocommit_is_refused_wherever_it_was_asked_for(bench: Bench, driver: Driver) -> None:
    asked = {"isolation_level": "AUTOCOMMIT"}

    def work(connection: Connection) -> None:
        send(bench, connection)

    Users(bench, driver, **asked).do(work)
    Users(bench, driver, execution_options=asked).do(work)
    Users(bench, driver).do(work, **asked)

    assert (bench.ids(), bench.handed) == ([], [])


@pytest.mark.skipif(
    not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="this Python has no such argument"
)
def test_autocommit_of_sqlite_itself_is_refused(bench: Bench, driver: Driver) -> None:
    if driver.module not in ("sqlite3", "aiosqlite"):
        pytest.skip("an argument of sqlite3")

    def work(connection: Connection) -> None:
        send(bench, connection)

    Users(bench, driver, connect_args={"autocommit": True}).do(work)

    assert (bench.ids(), bench.handed) == ([], [])


def test_many_comments_before_a_statement_are_read_once(bench: Bench, driver: Driver) -> None:
    """A pattern that tries each comment in two ways needs 2**60 tries: this test would not end."""

    def work(connection: Connection) -> None:
        with bench.transaction(connection) as tx:
            tx.send("orders", {"id": 1})
        assert connection.execute(text("/* a */ " * 60 + "SELECT 1")).scalar_one() == 1

    Users(bench, driver).do(work)


def test_autocommit_is_refused_behind_a_statement_and_within_a_savepoint(
    bench: Bench, driver: Driver
) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))
        send(bench, connection)
        connection.rollback()
        if connection.dialect.name == "sqlite":  # elsewhere there is no savepoint in AUTOCOMMIT
            with connection.begin_nested():
                send(bench, connection)

    Users(bench, driver, isolation_level="AUTOCOMMIT").do(work)

    assert (bench.ids(), bench.handed) == ([], [])


def test_a_server_is_asked_where_sqlalchemy_cannot_tell(
    bench: Bench, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before its 2.0.43, and by dialects of others."""
    if driver.module in ("sqlite3", "aiosqlite"):
        pytest.skip("SQLite is no server")
    sent: list[str] = []

    def unknown(connection: Connection, statement: str) -> None:
        def not_there(_connection: object) -> bool:
            raise NotImplementedError

        dialect = connection.dialect
        monkeypatch.setattr(dialect, "detect_autocommit_setting", not_there)
        if statement:  # below SQLAlchemy's own level
            connection.exec_driver_sql(statement)

    def refused(connection: Connection) -> None:
        unknown(connection, "SET autocommit = 1" if connection.dialect.name != "postgresql" else "")
        monkeypatch.setattr(connection.dialect, "_on_connect_isolation_level", None)
        send(bench, connection)

    def taken(connection: Connection) -> None:
        unknown(connection, "")
        with bench.transaction(connection) as tx:
            sent.append(tx.send("orders", {"id": 1}))

    is_postgres = driver.name.startswith("postgresql")
    Users(bench, driver, **{"isolation_level": "AUTOCOMMIT"} if is_postgres else {}).do(refused)
    Users(bench, driver).do(taken)

    assert bench.ids() == sent


def test_a_missing_table_is_told_in_our_words(bench: Bench, driver: Driver) -> None:
    """Each driver has a name of its own for the number of an error."""

    def work(connection: Connection) -> None:
        with (
            pytest.raises(ConfigurationError, match="rmq_message_stub is missing"),
            bench.transaction(connection) as tx,
        ):
            tx.send("orders", {"id": 1})

    bench.database.stubs.drop(bench.database.engine)

    Users(bench, driver).do(work)
