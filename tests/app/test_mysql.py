"""What MySQL and MariaDB do otherwise than PostgreSQL, and what the promises come to there."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from sqlalchemy import create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.local_mysql import LocalMySQL
from tests.outbox.benches import Bench
from tests.resend.worlds import World

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_database_busy, is_database_down
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Retry


@pytest.fixture
def bench(mysql_url: str) -> Iterator[Bench]:
    made = Bench(mysql_url)
    yield made
    made.database.close()


@pytest.fixture
def accounts(mysql_url: str) -> Iterator[Ledger]:
    ledger = Ledger(mysql_url)
    ledger.create(A, B)
    with ledger.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id VARCHAR(9) PRIMARY KEY, sum INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES ('a', 0), ('b', 0)"))
    yield ledger
    ledger.database.close()


CHANGE = text("UPDATE accounts SET sum = sum + 1 WHERE id = :id")


def lose_a_deadlock(database: Database, connection: Any) -> None:
    """Let `connection` be the victim of a deadlock; the error is the caller's."""
    rival_waits = threading.Event()

    def rival() -> None:
        with database.engine.begin() as other:
            # The victim is who changed less: the rival changes more.
            other.execute(text("INSERT INTO effects SELECT 'rival' FROM information_schema.tables"))
            other.execute(CHANGE, {"id": "b"})
            rival_waits.set()
            other.execute(CHANGE, {"id": "a"})

    with ThreadPoolExecutor(1) as pool:
        connection.execute(CHANGE, {"id": "a"})
        running = pool.submit(rival)
        rival_waits.wait(60)
        try:
            connection.execute(CHANGE, {"id": "b"})
        finally:
            running.result(20)


def test_a_handler_that_goes_on_after_a_deadlock_commits_nothing(accounts: Ledger) -> None:
    """InnoDB has rolled back the row that says "consumed", and would begin anew unseen."""
    calls: list[str] = []

    def transfer(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        calls.append(message.message_id)
        if len(calls) == 1:
            try:
                lose_a_deadlock(accounts.database, session.connection())
            except OperationalError:
                session.execute(text("INSERT INTO effects VALUES ('fallback')"))

    async def scenario() -> None:
        url = accounts.database.url.render_as_string(hide_password=False)
        async with Life(url, None, handler=transfer, lease=LONG, max_attempts=3) as life:
            (outcome,) = await life.handle(delivery(A))
            assert isinstance(outcome, Retry)
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert [each for each in accounts.effects() if each != "rival"] == [A]
    assert accounts.logs() == {("payments", A): (1, 2)}


def test_a_batch_in_which_one_loses_a_deadlock_takes_effect_once(accounts: Ledger) -> None:
    calls: list[str] = []

    def transfer(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        calls.append(message.message_id)
        if message.message_id == B and calls.count(B) < 3:
            lose_a_deadlock(accounts.database, session.connection())

    async def scenario() -> None:
        url = accounts.database.url.render_as_string(hide_password=False)
        async with Life(url, None, handler=transfer, batch=3, lease=LONG, max_attempts=1) as life:
            outcomes = await life.until_settled(*map(delivery, (A, B, C)))
            assert outcomes == [CONSUMED] * 3

    asyncio.run(scenario())

    assert [each for each in accounts.effects() if each != "rival"] == [A, B, C]


@pytest.mark.parametrize(
    ("driver", "module"),
    [
        ("mysql+pymysql", "pymysql"),
        ("mysql+mysqldb", "MySQLdb"),
        ("mysql+mysqlconnector", "mysql.connector"),
        ("mariadb+mariadbconnector", "mariadb"),
    ],
)
def test_a_users_session_whose_transaction_the_server_ended_commits_nothing_afterwards(
    bench: Bench, accounts: Ledger, driver: str, module: str
) -> None:
    pytest.importorskip(module)
    url = bench.database.url.set(drivername=driver)
    theirs = create_engine(url)  # REPEATABLE READ, as MySQL has it
    with Session(theirs) as session:
        session.begin()
        with bench.transaction(session) as tx:
            tx.send("orders", {"id": 1})
        with pytest.raises(DBAPIError) as caught:
            lose_a_deadlock(bench.database, session.connection())
        assert is_database_busy(caught.value)
        assert not is_database_down(caught.value)
        with pytest.raises(PendingRollbackError):
            session.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(PendingRollbackError):
            session.commit()

    assert bench.orders() == 0
    assert bench.ids() == [A, B]  # which were there before
    assert bench.handed == []
    theirs.dispose()


def test_ids_and_groups_that_differ_in_case_accent_or_blanks_are_different(
    mysql_url: str,
) -> None:
    ledger = Ledger(mysql_url)
    ledger.create()
    names = ["a" * 32, "A" * 32, "é" * 32, "e" * 32, "a" * 31, "a" * 31 + " "]

    async def scenario() -> None:
        async with Life(mysql_url, None, lease=LONG) as life:
            assert await life.handle(*map(delivery, names)) == [CONSUMED] * len(names)

    asyncio.run(scenario())

    assert sorted(ledger.effects()) == sorted(names)
    ledger.database.close()


def test_text_that_is_too_long_is_refused_and_not_cut(mysql_url: str) -> None:
    database = Database(mysql_url, prefix="rmq_", connections=1)
    database.create_tables()

    row = "INSERT INTO rmq_schema_version VALUES (:text)"

    with database.engine.begin() as connection, pytest.raises(DBAPIError, match="too long"):
        connection.execute(text(row), {"text": "x" * 33})
    database.close()


def test_the_largest_body_comes_back_as_it_was_alone_and_among_many(bench: Bench) -> None:
    worst = bytes(range(256)) * (MESSAGE_BODY_SIZE_MAX // 256)  # every fifth byte is escaped
    with bench.transaction() as tx:
        for _ in range(6):
            tx.send("orders", worst)

    assert {row.content for row in bench.stubs()} == {worst}
    assert len(bench.handed) == 6


def test_numbers_come_in_the_order_of_the_stubs_whether_the_server_returns_them_or_not(
    bench: Bench,
) -> None:
    for returns in (True, False):
        engine = create_engine(bench.database.url)
        with engine.connect() as connection:
            if not returns:
                engine.dialect.insert_returning = False  # as MySQL
            elif not engine.dialect.insert_returning:
                continue
            with Session(connection) as session, bench.transaction(session) as tx:
                for number in range(5):
                    tx.send("orders", {"id": number})
            connection.commit()
        engine.dispose()

    rows = bench.stubs()
    assert [row.message_id for row in rows] == bench.handed[: len(rows)]


def test_a_session_of_the_same_database_under_another_name_is_taken_and_another_is_not(
    bench: Bench, mysql_server: LocalMySQL
) -> None:
    url = bench.database.url
    same = create_engine(url.set(drivername="mysql+pymysql", host="localhost"))
    with Session(same) as session, session.begin(), bench.transaction(session) as tx:
        tx.send("orders", {"id": 1})
    other = create_engine(url.set(database="information_schema"))
    with (
        Session(other) as session,
        pytest.raises(UsageError, match="would never be sent"),
        bench.transaction(session) as tx,
    ):
        tx.send("orders", {"id": 2})

    assert len(bench.ids()) == 1
    for engine in (same, other):
        engine.dispose()


def test_both_drivers_read_what_is_committed_and_keep_utc(mysql_url: str) -> None:
    database = Database(mysql_url, prefix="rmq_", connections=2)
    database.create_tables()

    async def level() -> tuple[str, Any]:
        async with database.async_session() as session:
            found = await (await session.connection()).get_isolation_level()
            zone = await session.scalar(select(database.stubs.c.create_date))
        await database.close_async()
        return str(found), zone

    with database.session() as session:
        assert session.connection().get_isolation_level() == "READ COMMITTED"
    assert asyncio.run(level()) == ("READ COMMITTED", None)
    database.close()


@pytest.fixture
def restricted_url(mysql_url: str, mysql_server: LocalMySQL) -> Iterator[str]:
    """Give the same database's URL for a user with a password and rights to nothing else."""
    url = make_url(mysql_url).set(username="restricted", password="p@ss:word")
    place = {"host": "127.0.0.1", "port": mysql_server.port, "user": "root"}
    with pymysql.connect(**place) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE USER restricted@localhost IDENTIFIED BY 'p@ss:word'")
        cursor.execute(f"GRANT ALL ON {url.database}.* TO restricted@localhost")
        try:
            yield url.render_as_string(hide_password=False)
        finally:
            cursor.execute("DROP USER restricted@localhost")


def test_a_user_with_a_password_and_the_rights_to_one_database_is_enough(
    restricted_url: str, mysql_server: LocalMySQL
) -> None:
    """MySQL has `caching_sha2_password`: who comes first without TLS sends it encrypted by RSA."""
    world = World(restricted_url)
    world.write("due", topic="t")
    with pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root") as connection:
        connection.cursor().execute("FLUSH PRIVILEGES")  # the async driver comes first, too

    async def first() -> Any:
        async with world.database.async_session() as session:
            found = await session.scalar(select(world.database.stubs.c.topic))
        await world.database.close_async()
        return found

    assert asyncio.run(first()) == "t"
    world.scheduler.run_once(105.0)
    assert "due" in world.broker.sent
    world.database.close()


def test_an_async_handler_whose_session_loses_the_server_is_called_again(
    mysql_url: str, mysql_server: LocalMySQL
) -> None:
    ledger = Ledger(mysql_url)
    ledger.create(A)
    calls: list[str] = []

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        await session.run_sync(write_effect, message)
        if len(calls) == 1:
            mysql_server.kill()
            mysql_server.start()
        await session.run_sync(lambda sync: sync.execute(text("SELECT 1")))

    async def scenario() -> None:
        async with Life(mysql_url, None, handler=handler, lease=0.5, max_attempts=9) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    ledger.database.engine.dispose()  # its connections are the dead server's
    assert ledger.effects() == [A]
    ledger.database.close()


def test_an_error_of_the_driver_says_whether_the_database_is_away_or_busy() -> None:
    def caught(code: int, words: str = "", kind: type = pymysql.err.OperationalError) -> Any:
        return DBAPIError.instance("SELECT 1", {}, kind(code, words), pymysql.err.Error)

    for code in (2003, 2006, 2013, 1040, 1053, 1836, 4031):
        assert (is_database_down(caught(code)), is_database_busy(caught(code))) == (True, False)
    for code in (1205, 1213, 3572, 1020):
        assert (is_database_down(caught(code)), is_database_busy(caught(code))) == (False, True)
    read_only = "The MySQL server is running with the --read-only option"
    assert is_database_down(caught(1290, read_only))
    for code, words in ((1290, "--secure-file-priv"), (1045, "Access denied"), (1064, "syntax")):
        assert not is_database_down(caught(code, words))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root@127.0.0.1", "no database"),
        ("mariadb+pymysql://root@127.0.0.1/", "no database"),
        ("mssql://x/y", "not supported"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Database(url, prefix="rmq_", connections=1)


@pytest.mark.parametrize("name", ["mysql", "mariadb", "mysql+mysqldb", "mariadb+asyncmy"])
def test_whichever_driver_the_url_names_ours_are_used(name: str) -> None:
    database = Database(f"{name}://root@127.0.0.1:1/x", prefix="rmq_", connections=1)

    assert database.dialect == "mysql"
    assert database.engine.url.drivername == "mysql+pymysql"
