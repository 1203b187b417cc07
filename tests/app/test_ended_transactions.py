"""A statement that ends a handler's transaction unseen: no effect is lost or doubled by us (P4)."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery

from reliable_mq.database.sql_handler_session import is_plain
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject

REST = "-rest"
ROUTINES = (
    "CREATE PROCEDURE commits() BEGIN COMMIT; END",
    "CREATE PROCEDURE goes_on() BEGIN COMMIT; INSERT INTO effects VALUES ('of a routine'); END",
    "CREATE PROCEDURE loses() BEGIN COMMIT; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END",
    "CREATE PROCEDURE harmless() BEGIN INSERT INTO effects VALUES ('of a routine'); END",
)
ENDS_ON_MYSQL: dict[str, Sequence[str]] = {
    "a procedure that commits": ["CALL commits()"],
    "a procedure that commits and goes on": ["CALL goes_on()"],
    "a prepared COMMIT": ["PREPARE ends FROM 'COMMIT'", "EXECUTE ends"],
    "a comment that is executed": ["/*!50000 COMMIT */"],
    "a comment behind a plain word": ["SELECT 1 /*!50000 INTO @x */", "/*!50000 COMMIT */"],
    "autocommit in a list": ["SET @x = 1, autocommit = 1"],
    "autocommit, on and off": ["SET @x = 1, autocommit = 1", "SET @x = 1, autocommit = 0"],
}
ENDS_ON_POSTGRESQL: dict[str, Sequence[str]] = {
    "behind a comment that a carriage return ends": ["--\rCOMMIT"],
    "behind an escaped quote": [r"SELECT E'\''; COMMIT; --'"],
    "with another one begun at once": [r"SELECT E'\''; COMMIT; BEGIN; --'"],
    "a chain": ["--\rCOMMIT AND CHAIN"],
}


def run(
    url: str,
    redis: str | None,
    handler: Callable[..., Any],
    names: Sequence[str] = (A, B, C),
    **options: Any,
) -> tuple[list[Any], Ledger]:
    """Have messages handled until all are settled; return the outcomes, and what was left."""
    ledger = Ledger(url)
    ledger.create(*names)

    async def scenario() -> list[Any]:
        given: dict[str, Any] = {"lease": LONG, "max_attempts": 3, "batch": 1, **options}
        async with Life(url, redis, handler=handler, **given) as life:
            return await life.until_settled(*map(delivery, names))

    return asyncio.run(scenario()), ledger


def ending(statements: Sequence[str], *, raises: bool) -> Callable[..., None]:
    """Return a handler that ends its transaction between two parts of its effect, for B."""

    def handler(session: Session, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        session.execute(effect, {"id": message.message_id})
        if message.message_id == B:
            for each in statements:
                session.connection().exec_driver_sql(each)
            if raises:
                raise ZeroDivisionError
        session.execute(effect, {"id": message.message_id + REST})

    return handler


def commits_by_the_driver(session: Session, message: ReceivedMessage) -> None:
    """Have an effect in two parts, for B with a COMMIT between them that no SQLAlchemy sees."""
    effect = text("INSERT INTO effects VALUES (:id)")
    session.execute(effect, {"id": message.message_id})
    if message.message_id == B:
        driver: Any = session.connection().connection.driver_connection
        driver.execute("COMMIT") if hasattr(driver, "execute") else driver.commit()
    session.execute(effect, {"id": message.message_id + REST})


def assert_given_up(outcomes: Sequence[Any], ledger: Ledger, *, has_committed: bool = True) -> None:
    """See that B is a person's, with what it committed there once, and the others are whole."""
    first, second, third = outcomes
    assert (first, third) == (CONSUMED, CONSUMED)
    assert isinstance(second, Reject)
    assert "the handler's transaction was ended by one of its statements" in second.reason
    whole = [A, A + REST, C, C + REST]
    assert ledger.effects() == sorted([*whole, *([B] if has_committed else [])])
    states = {name: state for (_, name), (state, _) in ledger.logs().items()}
    assert states == {A: 1, B: 0, C: 1}
    stubs = ledger.stubs()
    assert [stubs[each].status for each in (A, C)] == [1, 1]
    assert stubs[B].status != 1
    ledger.database.close()


def forget(redis_url: str) -> None:
    Redis.from_url(redis_url).flushall()


@pytest.fixture
def routines(mysql_url: str) -> str:
    ledger = Ledger(mysql_url)
    ledger.create()
    with ledger.database.engine.begin() as connection:
        for each in ROUTINES:
            connection.exec_driver_sql(each)
    ledger.database.close()
    return mysql_url


@pytest.mark.parametrize("how", ENDS_ON_MYSQL)
def test_a_handler_that_commits_unseen_on_mysql_is_given_up_and_nothing_is_doubled_or_lost(
    routines: str, redis_url: str, how: str
) -> None:
    for redis, raises, batch in ((redis_url, False, 1), (None, True, 1), (redis_url, True, 3)):
        handler = ending(ENDS_ON_MYSQL[how], raises=raises)
        assert_given_up(*run(routines, redis, handler, batch=batch))
        forget(redis_url)


@pytest.mark.parametrize("how", ENDS_ON_POSTGRESQL)
def test_a_handler_that_commits_unseen_on_postgresql_is_given_up_too(
    postgres_url: str, redis_url: str, how: str
) -> None:
    for redis, raises, batch in ((redis_url, False, 1), (None, True, 1), (redis_url, True, 3)):
        handler = ending(ENDS_ON_POSTGRESQL[how], raises=raises)
        assert_given_up(*run(postgres_url, redis, handler, batch=batch))
        forget(redis_url)


@pytest.mark.parametrize("with_redis", [True, False])
def test_a_message_that_was_given_up_is_not_run_again_when_its_dead_letter_was_never_sent(
    routines: str, redis_url: str, *, with_redis: bool
) -> None:
    """Given a process that died when the row was committed, then the message comes again."""
    ledger = Ledger(routines)
    ledger.create(A, B, C)
    redis = redis_url if with_redis else None

    async def outcome(handler: Callable[..., Any]) -> Any:
        async with Life(routines, redis, handler=handler, lease=LONG, max_attempts=3) as life:
            (only,) = await life.until_settled(delivery(B))
            return only

    first = asyncio.run(outcome(ending(["CALL commits()"], raises=False)))
    forget(redis_url)  # its word would do, and may be gone
    again = asyncio.run(outcome(ending([], raises=False)))

    assert isinstance(first, Reject)
    assert again == first
    assert ledger.effects() == [B]
    ledger.database.close()
    forget(redis_url)


def test_a_procedure_that_commits_and_then_loses_a_deadlock_is_noticed_by_its_row(
    routines: str, redis_url: str
) -> None:
    """The server has forgotten the savepoint either way, with the transaction that lost."""
    for batch in (1, 3):
        handler = ending(["CALL loses()"], raises=False)
        assert_given_up(*run(routines, redis_url, handler, batch=batch))
        forget(redis_url)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("procedure", ["goes_on", "loses"])
def test_an_async_handler_that_commits_unseen_is_given_up(
    routines: str, redis_url: str, batch: int, procedure: str
) -> None:
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        await session.execute(effect, {"id": message.message_id})
        if message.message_id == B:
            await session.execute(text(f"CALL {procedure}()"))
        await session.execute(effect, {"id": message.message_id + REST})

    assert_given_up(*run(routines, redis_url, handler, batch=batch))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_commit_of_the_driver_is_noticed_too(
    database_url: str, redis_url: str, batch: int
) -> None:
    assert_given_up(*run(database_url, redis_url, commits_by_the_driver, batch=batch))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_commit_of_the_driver_behind_which_another_transaction_began_shows_when_it_fails(
    database_url: str, redis_url: str, batch: int
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        if message.message_id == B:
            driver: Any = session.connection().connection.driver_connection
            driver.commit()
            begins = "BEGIN" if "sqlite" in database_url else "SELECT 1 FROM effects"
            driver.cursor().execute(begins)
            raise ZeroDivisionError
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id + REST})

    assert_given_up(*run(database_url, redis_url, handler, batch=batch))


def test_a_handler_that_takes_no_notice_of_the_end_is_given_up_all_the_same(
    routines: str, redis_url: str
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        session.execute(effect, {"id": message.message_id})
        with suppress(Exception):
            if message.message_id == B:
                session.execute(text("CALL commits()"))
            session.execute(effect, {"id": message.message_id + REST})

    for batch in (1, 3):
        assert_given_up(*run(routines, redis_url, handler, batch=batch))
        forget(redis_url)


def test_an_attempt_that_was_received_first_is_given_up_too(routines: str, redis_url: str) -> None:
    handler = ending(["CALL commits()"], raises=False)

    assert_given_up(*run(routines, redis_url, handler, log_receipt=True))


def test_a_procedure_that_leaves_the_transaction_alone_is_part_of_the_effect(
    routines: str, redis_url: str
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        with session.begin_nested():
            session.execute(text("CALL harmless()"))
        undone = session.begin_nested()
        session.execute(text("CALL harmless()"))
        undone.rollback()
        session.execute(text("SET @x = 1"))

    for batch in (1, 3):
        outcomes, ledger = run(routines, redis_url, handler, batch=batch)
        assert outcomes == [CONSUMED] * 3
        assert ledger.effects() == ["of a routine"] * 3
        forget(redis_url)


def test_what_fails_behind_a_savepoint_of_ours_still_fails_on_postgresql(
    postgres_url: str, redis_url: str
) -> None:
    """An error ends the transaction there; that we look for it must not bring it back to life."""

    def handler(session: Session, message: ReceivedMessage) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        with suppress(DBAPIError):
            session.execute(text("SET LOCAL no_such_setting = 1"))

    (outcome,), ledger = run(postgres_url, redis_url, handler, [A], max_attempts=2)

    assert isinstance(outcome, Reject)
    assert outcome.reason.startswith("attempt 2 of 2 failed")
    assert ledger.effects() == []


def test_a_rollback_by_a_conflict_on_sqlite_is_noticed(tmp_path: Any, redis_url: str) -> None:
    """SQLite ends the transaction with the statement, and takes what follows for its own."""
    url = f"sqlite:///{tmp_path / 'application.db'}"

    def handler(session: Session, message: ReceivedMessage) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        if message.message_id == B:
            session.execute(text("CREATE TABLE IF NOT EXISTS one (id INTEGER PRIMARY KEY)"))
            session.execute(text("INSERT INTO one VALUES (1)"))
            with suppress(IntegrityError):
                session.execute(text("INSERT OR ROLLBACK INTO one VALUES (1)"))
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id + REST})

    for batch in (1, 3):
        outcomes, ledger = run(url, redis_url, handler, batch=batch)
        assert_given_up(outcomes, ledger, has_committed=False)
        forget(redis_url)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "\n  insert into effects values (1)",
        "WITH a AS (SELECT 1) UPDATE b SET c = 1",
        "ROLLBACK TO SAVEPOINT a",
        "RELEASE SAVEPOINT a",
        "/* a query's tag */ SELECT 1",
        "/**/(/* two *//*+ of them */ select 1)",
        "-- a line\r\n  --\n /* COMMIT */ INSERT INTO effects VALUES (1)",
    ],
)
def test_a_plain_statement_costs_no_round_trip_more(statement: str) -> None:
    assert is_plain(statement, "mysql")
    assert is_plain(statement, "postgresql")


@pytest.mark.parametrize(
    "statement", ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "CALL a()", "CREATE TABLE a ()"]
)
def test_postgresql_refuses_a_commit_in_what_a_statement_calls(statement: str) -> None:
    """Some of them are refused behind a savepoint, so none may be set without need."""
    assert is_plain(statement, "postgresql")


@pytest.mark.parametrize(
    "statement", ["COMMIT", "PREPARE TRANSACTION 'a'", "/* */ END", "DO ';'", "ROLLBACK"]
)
def test_of_some_statements_nobody_knows_on_postgresql_either(statement: str) -> None:
    assert not is_plain(statement, "postgresql")


@pytest.mark.parametrize("dialect", ["mysql", "postgresql", "sqlite"])
@pytest.mark.parametrize(
    "statement", ["/* /* */ SELECT */ COMMIT", "--\rCOMMIT\n SELECT 1", "--\rSELECT 1"]
)
def test_a_comment_that_databases_end_at_different_places_hides_nothing(
    statement: str, dialect: str
) -> None:
    assert not is_plain(statement, dialect)


def test_many_comments_before_a_statement_are_read_in_one_pass() -> None:
    """They take a moment; a search that goes back would take longer than the machine lives."""
    assert is_plain("/* tag */ -- so\n" * 20_000 + "SELECT 1", "mysql")
    assert not is_plain("/* tag */" * 20_000 + "/* open", "mysql")


@pytest.mark.parametrize(
    "statement",
    [
        "CALL a()",
        "EXECUTE a",
        "SET @x = 1",
        "DO 1",
        "/* */ CALL a()",
        "/* */ -- so\n COMMIT",
        "/*! */ SELECT 1",
        "/*M!100000 */ SELECT 1",
        "/* SELECT 1",
        "-- SELECT 1",
        "SELECT 1; COMMIT",
        "SELECT 1 /*! ; */",
        "SELECT 1 /*M!100000 ; */",
        "ROLLBACK",
        "SELECTED",
    ],
)
def test_of_any_other_statement_nobody_knows_what_it_does(statement: str) -> None:
    assert not is_plain(statement, "mysql")
