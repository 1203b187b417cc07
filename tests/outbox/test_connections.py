"""P1 on Core connections, and in savepoints of every kind; on both databases."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from tests.outbox.benches import Bench

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError

INSERT = text("INSERT INTO orders VALUES (1)")


def test_a_connection_without_a_transaction_is_committed_by_the_block(bench: Bench) -> None:
    with bench.database.engine.connect() as connection:
        with bench.transaction(connection) as tx:
            assert tx.connection is connection
            connection.execute(INSERT)
            message_id = tx.send("orders", {"id": 1}, key=1)
            assert bench.handed == []  # not before the commit
        assert not connection.in_transaction()

    assert bench.orders() == 1
    assert bench.ids() == bench.handed == [message_id]


def test_an_exception_in_the_block_rolls_a_connection_back(bench: Bench) -> None:
    def block(connection: Connection) -> None:
        with bench.transaction(connection) as tx:
            connection.execute(INSERT)
            tx.send("orders", {"id": 1})
            raise ZeroDivisionError

    with bench.database.engine.connect() as connection:
        with pytest.raises(ZeroDivisionError):
            block(connection)
        assert not connection.in_transaction()

    assert (bench.orders(), bench.ids(), bench.handed) == (0, [], [])


def test_a_connection_in_a_transaction_is_committed_by_its_owner(bench: Bench) -> None:
    with bench.database.engine.begin() as connection:
        with bench.transaction(connection) as tx:
            first = tx.send("orders", {"id": 1})
        with bench.transaction(connection) as tx:
            second = tx.send("orders", {"id": 2})
        assert (bench.handed, connection.in_transaction()) == ([], True)

    assert bench.handed == bench.ids() == [first, second]


def test_a_connection_that_its_owner_rolls_back_leaves_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.database.engine.connect() as connection:
        connection.execute(INSERT)
        with bench.transaction(connection) as tx:
            tx.send("orders", {"id": 1})
        connection.rollback()
        connection.execute(INSERT)
        connection.commit()

    assert (bench.orders(), bench.ids(), bench.handed, caplog.records) == (1, [], [], [])


def test_messages_of_a_connection_that_nobody_commits_are_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The query began a transaction, so the block joined it, and the owner forgot it."""
    with bench.database.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with bench.transaction(connection) as tx:
            tx.send_many("orders", [{"id": 1}, {"id": 2}])

    assert (bench.ids(), bench.handed) == ([], [])
    (line,) = [each.getMessage() for each in caplog.records]
    assert "2 message(s) were written into a transaction that was closed without commit" in line
    assert "mq.transaction(connection)" in line


def test_an_asynchronous_connection_keeps_the_same_promise(bench: Bench) -> None:
    async def failing(connection: AsyncConnection) -> None:
        async with bench.transaction(connection) as tx:
            await tx.send("orders", {"id": 2})
            raise ZeroDivisionError

    async def scenario() -> tuple[str, str, list[str]]:
        async with bench.database.async_engine.connect() as connection:
            async with bench.transaction(connection) as tx:
                await tx.connection.execute(INSERT)
                first = await tx.send("orders", {"id": 1})
            with pytest.raises(ZeroDivisionError):
                await failing(connection)
            async with connection.begin():
                savepoint = await connection.begin_nested()
                async with bench.transaction(connection) as tx:
                    await tx.send("orders", {"id": 3})
                await savepoint.rollback()
                async with connection.begin_nested(), bench.transaction(connection) as tx:
                    second = await tx.send("orders", {"id": 4})
                    many = await tx.send_many("orders", [{"id": 5}, {"id": 6}])
        await bench.database.close_async()
        return first, second, many

    first, second, many = asyncio.run(scenario())

    assert bench.ids() == [first, second, *many]
    assert set(bench.handed) >= {first, second, *many}


def test_a_session_within_the_transaction_of_a_connection_commits_nothing_by_itself(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """As tests do that roll everything back, and applications that mix Core and ORM."""
    with bench.database.engine.connect() as connection, connection.begin():
        with Session(connection) as session:
            with bench.transaction(session) as tx:
                message_id = tx.send("orders", {"id": 1})
            assert bench.handed == []  # the session has committed, the connection has not
        connection.execute(INSERT)

    assert bench.handed == bench.ids() == [message_id]
    assert caplog.records == []


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully", "rollback_only"])
def test_every_way_of_joining_a_connection_leaves_what_the_connection_commits(
    bench: Bench, mode: Any
) -> None:
    for ends in ("commit", "rollback"):
        with bench.database.engine.connect() as connection:
            outer = connection.begin()
            with (
                Session(connection, join_transaction_mode=mode) as session,
                bench.transaction(session) as tx,
            ):
                tx.send("orders", {"id": 1})
            if outer.is_active:
                getattr(outer, ends)()

    kept = 2 if mode == "control_fully" else 1
    assert len(bench.ids()) == len(set(bench.handed)) == kept


def test_a_two_phase_commit_hands_over_when_it_is_decided(bench: Bench) -> None:
    if bench.database.dialect == "sqlite":
        pytest.skip("SQLite has no two-phase commit")
    with bench.database.engine.connect() as connection:
        transaction = connection.begin_twophase()
        with bench.transaction(connection) as tx:
            message_id = tx.send("orders", {"id": 1})
        transaction.commit()  # without `prepare`, which a server has to allow by a setting

    assert bench.handed == bench.ids() == [message_id]


class Savepoint:
    """One way to make a savepoint: on a session or connection, or by SQL."""

    def __init__(self, name: str, of: Callable[[Session], Any]) -> None:
        self.name = name
        self.of = of

    @contextmanager
    def on(self, session: Session, keeps: bool) -> Iterator[None]:
        if self.name == "sql":
            session.execute(text("SAVEPOINT ours"))
            yield
            session.execute(text("RELEASE SAVEPOINT ours" if keeps else "ROLLBACK TO ours"))
            return
        savepoint = self.of(session)
        yield
        (savepoint.commit if keeps else savepoint.rollback)()


SAVEPOINTS = [
    Savepoint("session", lambda session: session.begin_nested()),
    Savepoint("connection", lambda session: session.connection().begin_nested()),
    Savepoint("sql", lambda session: None),
]


@pytest.mark.parametrize("inner", SAVEPOINTS, ids=lambda each: each.name)
@pytest.mark.parametrize("outer", SAVEPOINTS[:2], ids=lambda each: each.name)
@pytest.mark.parametrize("keeps_outer", [True, False])
@pytest.mark.parametrize("keeps_inner", [True, False])
@pytest.mark.parametrize("blocks", [True, False])
def test_savepoints_keep_or_take_their_stubs_at_any_depth(
    bench: Bench,
    outer: Savepoint,
    inner: Savepoint,
    keeps_outer: bool,
    keeps_inner: bool,
    blocks: bool,
) -> None:
    """A block of its own in each savepoint, or one block around them all: it is the same."""
    kept = []
    with bench.transaction() as tx:
        session = tx.session

        def send() -> str:
            if not blocks:
                return tx.send("orders", {})
            with bench.transaction(session) as own:
                return own.send("orders", {})

        kept.append(send())
        with outer.on(session, keeps_outer):
            first = send()
            with inner.on(session, keeps_inner):
                second = send()
            third = send()
        kept += [first, *([second] if keeps_inner else []), third] if keeps_outer else []
        kept.append(send())
        assert bench.handed == []

    assert bench.ids() == kept
    assert bench.read_back() == kept


def test_a_session_per_thread_and_one_per_task_are_taken_for_what_they_are(bench: Bench) -> None:
    per_thread = scoped_session(sessionmaker(bench.database.engine))
    with bench.transaction(per_thread) as tx:
        assert tx.session is per_thread()
        first = tx.send("orders", {"id": 1})
    per_thread.remove()

    async def scenario() -> str:
        factory = async_sessionmaker(bench.database.async_engine)
        per_task = async_scoped_session(factory, asyncio.current_task)
        async with bench.transaction(per_task) as tx:
            second = await tx.send("orders", {"id": 2})
        await per_task.remove()
        await bench.database.close_async()
        return second

    second = asyncio.run(scenario())

    assert bench.ids() == bench.handed == [first, second]


def test_a_session_that_is_bound_table_by_table_is_told_what_to_add(bench: Bench) -> None:
    engine, stubs = bench.database.engine, bench.database.stubs
    with (
        Session(binds={bench.database.logs: engine}) as session,
        bench.transaction(session) as tx,
        pytest.raises(UsageError, match=r"add `binds=\{mq.database.stubs: engine\}`"),
    ):
        tx.send("orders", {"id": 1})
    with Session(binds={stubs: engine}) as session, bench.transaction(session) as tx:
        message_id = tx.send("orders", {"id": 1})

    assert bench.handed == bench.ids() == [message_id]


def test_what_a_block_does_not_have_says_what_it_has(bench: Bench) -> None:
    with bench.transaction() as tx, pytest.raises(UsageError, match=r"tx\.session\.connection\(\)"):
        _ = tx.connection
    with (
        bench.database.engine.begin() as connection,
        bench.transaction(connection) as tx,
        pytest.raises(UsageError, match=r"not a session: use tx\.connection"),
    ):
        _ = tx.session


def test_an_engine_is_no_transaction_and_kinds_are_not_mixed(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"mq\.transaction\(Engine\): pass a Session"):
        bench.transaction(bench.database.engine)

    async def mixed() -> None:
        async with bench.database.async_engine.connect() as connection:
            with (
                pytest.raises(UsageError, match=r"`async with mq\.transaction\(connection\)`"),
                bench.transaction(connection),
            ):
                pass
        await bench.database.close_async()

    async def mixed_too() -> None:
        with bench.database.engine.connect() as connection:
            async with bench.transaction(connection):
                pass

    asyncio.run(mixed())
    with pytest.raises(UsageError, match=r"`with mq\.transaction\(connection\)`, without async"):
        asyncio.run(mixed_too())


@pytest.fixture
def autocommit(bench: Bench) -> Iterator[Engine]:
    engine = create_engine(bench.database.engine.url, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def test_a_connection_in_autocommit_is_refused(bench: Bench, autocommit: Engine) -> None:
    """Its messages would be sent whatever becomes of the block: P1 could not hold."""
    with (
        autocommit.connect() as connection,
        bench.transaction(connection) as tx,
        pytest.raises(UsageError, match="AUTOCOMMIT"),
    ):
        tx.send("orders", {"id": 1})
    with (
        Session(autocommit) as session,
        bench.transaction(session) as tx,
        pytest.raises(UsageError, match="AUTOCOMMIT"),
    ):
        tx.send("orders", {"id": 1})

    assert (bench.ids(), bench.handed) == ([], [])


class _Tables(DeclarativeBase): ...


class Order(_Tables):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_what_a_refused_session_has_pending_is_not_written(
    bench: Bench, autocommit: Engine
) -> None:
    """In AUTOCOMMIT a flush is a commit: the order would be there without its message."""

    def block(session: Session) -> None:
        with bench.transaction(session) as tx:
            session.add(Order(id=1))
            tx.send("orders", {"id": 1})

    with Session(autocommit) as session, pytest.raises(UsageError, match="AUTOCOMMIT"):
        block(session)

    assert (bench.orders(), bench.ids()) == (0, [])


def test_an_asynchronous_connection_in_autocommit_is_refused(bench: Bench) -> None:
    async def scenario() -> None:
        url = bench.database.async_engine.url
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection, bench.transaction(connection) as tx:
            with pytest.raises(UsageError, match="AUTOCOMMIT"):
                await tx.send("orders", {"id": 1})
        await engine.dispose()
        await bench.database.close_async()

    asyncio.run(scenario())

    assert bench.ids() == []


def test_a_connection_of_another_database_is_refused(bench: Bench, tmp_path: Any) -> None:
    other = Database(f"sqlite:///{tmp_path / 'other.db'}", prefix="rmq_", connections=1)
    other.create_tables()
    with (
        other.engine.connect() as connection,
        bench.transaction(connection) as tx,
        pytest.raises(UsageError, match="never be sent"),
    ):
        tx.send("orders", {"id": 1})
    other.close()
