"""A series on PostgreSQL: its transactions share a connection, and nothing else."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import ref

import psycopg
import pytest
from sqlalchemy import Connection, Engine, PoolProxiedConnection, event, text
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Handler, Ledger, Life, delivery, write_effect

from reliable_mq.database.sql_chained_commits import commit_and_chain
from reliable_mq.database.sql_handler_session import status_of
from reliable_mq.database.thread_world import ConnectionOfSeries
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Retry

PLACE = text("SELECT pg_backend_pid(), pg_current_xact_id()::text")
OPEN = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state LIKE 'idle in transaction%'"
)


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    made = Ledger(postgres_url)
    made.create(A, B, C)
    yield made
    made.database.close()


class Series(NamedTuple):
    """Handles messages as a worker with Redis does. Without it, they would have receipts."""

    url: str
    redis: str

    def outcomes(self, handler: Handler) -> list[Outcome]:
        """Let one life handle three messages in a series; return their outcomes."""

        async def scenario() -> list[Outcome]:
            async with Life(self.url, self.redis, handler=handler, lease=LONG) as life:
                outcomes = await life.handle(*map(delivery, (A, B, C)))
                with life.database.engine.connect() as connection:
                    assert connection.execute(OPEN).scalar_one() == 0
                return outcomes

        return asyncio.run(scenario())


@pytest.fixture
def series(postgres_url: str, redis_url: str) -> Series:
    return Series(postgres_url, redis_url)


def test_transactions_of_a_series_follow_each_other_on_one_connection(
    series: Series, ledger: Ledger
) -> None:
    places, seen = [], []

    def handler(message: ReceivedMessage, session: Session) -> None:
        seen.append(ledger.effects())  # by another connection: what is committed
        places.append(tuple(session.execute(PLACE).one()))
        assert isinstance(session.get_bind(), Engine)
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 3

    assert seen == [[], [A], [A, B]]
    connections, transactions = zip(*places, strict=True)
    assert (len(set(connections)), len(set(transactions))) == (1, 3)


def test_a_commit_that_fails_in_a_series_takes_back_its_own_message_only(
    series: Series, ledger: Ledger
) -> None:
    with ledger.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE effects"))
        connection.execute(
            text("CREATE TABLE effects (id TEXT, kind TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        )
    insert = text("INSERT INTO effects VALUES (:id, :kind)")

    def handler(message: ReceivedMessage, session: Session) -> None:
        kind = "last" if message.message_id == C else "same"
        session.execute(insert, {"id": message.message_id, "kind": kind})

    first, second, third = series.outcomes(handler)

    assert (first, third) == (CONSUMED, CONSUMED)
    assert isinstance(second, Retry)
    assert ledger.effects() == [A, C]
    assert [ledger.stubs()[each].status for each in (A, B, C)] == [1, 0, 1]


def test_what_a_handler_sets_on_its_connection_does_not_reach_the_next_message(
    series: Series, ledger: Ledger
) -> None:
    found = []

    def handler(message: ReceivedMessage, session: Session) -> None:
        connection = session.connection()
        found.append(connection.get_execution_options().get("tenant"))
        connection.execution_options(tenant=message.message_id)
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 3

    assert found == [None, None, None]
    assert ledger.effects() == [A, B, C]


def test_a_handler_that_drops_its_connection_does_not_keep_the_series_from_going_on(
    series: Series, ledger: Ledger
) -> None:
    def handler(message: ReceivedMessage, session: Session) -> None:
        write_effect(session, message)
        if message.message_id == A:
            session.connection().invalidate()

    first, second, third = series.outcomes(handler)

    assert isinstance(first, Retry)
    assert (second, third) == (CONSUMED, CONSUMED)
    assert ledger.effects() == [B, C]


def test_a_statement_after_the_commit_of_one_message_loses_no_commit_of_the_next(
    series: Series, ledger: Ledger
) -> None:
    """SQLAlchemy begins a transaction for it. The next session would only join that."""

    def handler(message: ReceivedMessage, session: Session) -> None:
        connection = session.connection()
        event.listen(session, "after_commit", lambda _: connection.execute(text("SELECT 1")))
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 3

    assert ledger.effects() == [A, B, C]
    assert [ledger.stubs()[each].status for each in (A, B, C)] == [1, 1, 1]


def test_a_statement_between_two_messages_of_a_series_loses_no_commit(ledger: Ledger) -> None:
    """A thread of the last handler may still have the connection."""
    kept = ConnectionOfSeries(ledger.database.engine)
    insert = text("INSERT INTO effects VALUES (:id)")
    for name in (A, B):
        with ledger.database.handler_session() as session:
            kept.lend(session)
            connection = session.connection()
            session.execute(insert, {"id": name})
            session.commit_and_begin()
            kept.keep(is_needed=True)
        connection.execute(text("SELECT 1"))
    kept.release()

    assert ledger.effects() == [A, B]


def test_a_listener_on_the_connection_of_a_message_does_not_hear_the_next(
    series: Series, ledger: Ledger
) -> None:
    heard = []

    def handler(message: ReceivedMessage, session: Session) -> None:
        if message.message_id == A:
            event.listen(session.connection(), "commit", lambda _: heard.append(message.message_id))
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 3

    assert heard == [A]


def test_listeners_of_a_commit_commit_other_connections_as_ever(
    series: Series, ledger: Ledger
) -> None:
    """A connection in AUTOCOMMIT has no transaction that another one could follow."""
    insert = text("INSERT INTO effects VALUES (:id)")

    def handler(message: ReceivedMessage, session: Session) -> None:
        engine = session.get_bind().engine
        other = engine.execution_options(isolation_level="AUTOCOMMIT")

        def note(_session: Session) -> None:
            with other.connect() as connection:
                connection.execute(insert, {"id": f"after {message.message_id[0]}"})
                connection.commit()

        event.listen(session, "after_commit", note)
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 3

    assert ledger.effects() == [A, B, C, "after A", "after B", "after C"]


@pytest.mark.parametrize(("version", "is_begun"), [((14, 9), False), ((15, 0), True)])
def test_a_server_that_would_notify_late_begins_nothing_with_a_commit(
    ledger: Ledger, version: tuple[int, int], is_begun: bool
) -> None:
    engine, kept = ledger.database.engine, ConnectionOfSeries(ledger.database.engine)
    with ledger.database.handler_session() as session:
        kept.lend(session)
        engine.dialect.server_version_info = version
        status = status_of(session.connection())
        session.commit_and_begin()
        assert status is not None
        assert status() is is_begun
    kept.release()


def test_a_session_leaves_nothing_for_the_garbage_collector(ledger: Ledger) -> None:
    sessions = []
    gc.disable()
    try:
        for _ in range(2):
            with ledger.database.handler_session() as session:
                session.begin()
                with session.held():
                    session.execute(text("SELECT 1"))
                session.commit()
            sessions.append(ref(session))
            del session
            assert sessions[-1]() is None
    finally:
        gc.enable()


def chained(connection: Connection) -> None:
    """Commit as a series does, below SQLAlchemy."""
    proxied = connection.connection
    assert isinstance(proxied, PoolProxiedConnection)
    commit_and_chain(proxied)


def driver_of(connection: Connection) -> Any:
    """Return psycopg's connection."""
    return connection.connection.driver_connection


def test_an_error_of_a_commit_in_a_series_tells_what_a_cursor_would_tell(ledger: Ledger) -> None:
    with ledger.database.engine.connect() as connection:
        connection.execute(text("CREATE TEMP TABLE once (id INT)"))
        connection.execute(text("ALTER TABLE once ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"))
        connection.execute(text("INSERT INTO once VALUES (1), (1)"))
        with pytest.raises(psycopg.errors.UniqueViolation, match="duplicate key") as caught:
            chained(connection)

    assert caught.value.sqlstate == "23505"
    assert caught.value.diag.constraint_name == "once_id_key"


def test_a_connection_that_ends_before_a_commit_in_a_series_is_known_to_be_lost(
    ledger: Ledger,
) -> None:
    engine = ledger.database.engine
    with engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with engine.begin() as other:
            there = text("SELECT pg_terminate_backend(:pid, 10000)")  # waits until it has ended
            assert other.execute(there, {"pid": pid}).scalar_one()
        with pytest.raises(psycopg.OperationalError) as caught:
            chained(connection)
        error: Any = caught.value
        assert engine.dialect.is_disconnect(error, connection.connection, None)
        connection.invalidate()


def test_a_commit_in_a_series_waits_its_turn_in_a_pipeline(ledger: Ledger) -> None:
    """libpq refuses a statement outside of a pipeline that a handler has left open."""
    with ledger.database.engine.connect() as connection:
        before = connection.execute(PLACE).one()
        with driver_of(connection).pipeline():
            chained(connection)
        after = connection.execute(PLACE).one()

    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_connection_for_asyncio_commits_in_a_series_by_a_cursor(ledger: Ledger) -> None:
    """A thread must not wait for the lock of such a connection."""

    async def scenario() -> None:
        engine = ledger.database.async_engine
        assert engine.dialect.driver == "psycopg"
        async with engine.connect() as connection:
            before = (await connection.execute(PLACE)).one()
            await connection.run_sync(chained)
            after = (await connection.execute(PLACE)).one()
        await ledger.database.close_async()
        assert before[0] == after[0]
        assert before[1] != after[1]

    asyncio.run(scenario())
