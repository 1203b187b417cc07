"""P1: a stub exists if and only if the business transaction committed; on both databases."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import Integer, create_engine, event, make_url, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column
from tests.outbox.benches import Bench

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.outbox.sql_stubs import SqlStubs


class Tables(DeclarativeBase): ...


class Unsaved(Tables):
    """A row of the business that waits in the session for its flush."""

    __tablename__ = "orders"
    id: ClassVar[Any] = mapped_column(Integer, primary_key=True)


def insert_order(session: Session) -> None:
    session.execute(text("INSERT INTO orders VALUES (1)"))


def test_a_commit_leaves_the_row_the_stub_and_hands_it_to_the_relay(bench: Bench) -> None:
    with bench.transaction() as tx:
        insert_order(tx.session)
        message_id = tx.send("orders", {"id": 1}, tag="paid", key=17, ordering_key="c1")
        assert bench.handed == []  # not before the commit

    (row,) = bench.stubs()
    assert bench.orders() == 1
    assert bench.handed == [message_id] == [row.message_id]
    assert (row.topic, row.tag, row.message_key, row.ordering_key) == ("orders", "paid", "17", "c1")
    assert bytes(row.content) == b'{"id":1}'
    assert (row.status, row._mapping["count"], row.required_groups) == (0, 0, "payments")
    assert row.owner == "relay"
    assert row.resend_time == row.lease_until == row.create_date + timedelta(seconds=5)


def test_an_exception_in_the_block_leaves_neither_row_nor_stub(bench: Bench) -> None:
    def block() -> None:
        with bench.transaction() as tx:
            insert_order(tx.session)
            tx.send("orders", {"id": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()

    assert (bench.orders(), bench.ids(), bench.handed) == (0, [], [])


def test_a_rolled_back_savepoint_takes_its_stubs_along(bench: Bench) -> None:
    with bench.transaction() as tx:
        first = tx.send("orders", {"id": 1})
        savepoint = tx.session.begin_nested()
        lost = tx.send("orders", {"id": 2})
        savepoint.rollback()
        with tx.session.begin_nested():
            kept = tx.send("orders", {"id": 3})
        assert bench.handed == []  # a released savepoint commits nothing

    assert bench.ids() == [first, kept]
    # The relay may be handed the lost one; it reads stubs back before it sends (next test).
    assert set(bench.handed) >= {first, kept}
    assert lost not in bench.ids()


def test_the_relay_reads_back_only_what_is_committed_and_its_own(bench: Bench) -> None:
    with bench.transaction() as tx:
        kept = tx.send("orders", {"id": 1})
        savepoint = tx.session.connection().begin_nested()  # below the session: no event tells us
        lost = tx.send("orders", {"id": 2})
        savepoint.rollback()

    stubs = SqlStubs(bench.database.engine, bench.database.stubs)

    assert stubs.sendable([kept, lost], "relay") == {kept: False}
    assert stubs.sendable([kept, lost], "somebody else") == {}


def test_an_inner_block_joins_and_the_outer_commit_decides(bench: Bench) -> None:
    session = bench.database.session()
    with session:
        insert_order(session)
        with bench.transaction(session) as tx:
            message_id = tx.send("orders", {"id": 1})
        assert (bench.handed, session.in_transaction()) == ([], True)
        session.commit()

    assert bench.handed == bench.ids() == [message_id]


def test_an_inner_block_joins_and_the_outer_rollback_decides(bench: Bench) -> None:
    with bench.database.session() as session:
        insert_order(session)
        with bench.transaction(session) as tx:
            tx.send("orders", {"id": 1})
        session.rollback()
        session.commit()

    assert (bench.handed, bench.ids(), bench.orders()) == ([], [], 0)


def test_a_fresh_session_is_committed_by_the_block_and_stays_usable(bench: Bench) -> None:
    with bench.database.session() as session:
        for _ in range(2):
            with bench.transaction(session) as tx:
                insert_order(session)
                tx.send("orders", {"id": 1})
        assert not session.in_transaction()

    assert bench.orders() == len(bench.handed) == 2


def test_an_async_session_keeps_the_same_promise(bench: Bench) -> None:
    async def failing() -> None:
        async with bench.transaction() as tx:
            await tx.send("orders", {"id": 2})
            raise ZeroDivisionError

    async def scenario() -> tuple[str, str]:
        async with bench.transaction() as tx:
            await tx.session.execute(text("INSERT INTO orders VALUES (1)"))
            first = await tx.send("orders", {"id": 1}, key="a")
        with pytest.raises(ZeroDivisionError):
            await failing()
        async with (
            bench.database.async_session() as session,
            session.begin(),
            bench.transaction(session) as tx,
        ):
            second = await tx.send("orders", {"id": 3})
        await bench.database.close_async()
        return first, second

    first, second = asyncio.run(scenario())

    assert bench.ids() == bench.handed == [first, second]


def test_what_cannot_be_sent_is_refused_in_the_transaction(bench: Bench) -> None:
    with bench.transaction() as tx:
        with pytest.raises(MessageRefused, match="legal name"):
            tx.send("no such name!", {})
        with pytest.raises(UsageError, match="more than a hundred years"):
            tx.send("orders", {}, delay=timedelta(days=40_000))
        with pytest.raises(UsageError, match="32 characters"):
            tx.send("orders", {}, message_id="short")
        kept = tx.send("orders", {"fine": True})

    assert bench.ids() == [kept]


def test_on_mysql_an_async_session_writes_a_body_of_any_bytes(mysql_url: str) -> None:
    """PyMySQL 1.2 no longer has what aiomysql writes bytes with."""
    bench, body = Bench(mysql_url), bytes(range(256))

    async def scenario() -> None:
        async with bench.transaction() as tx:
            await tx.send("orders", body)
        await bench.database.close_async()

    asyncio.run(scenario())

    assert [bytes(row.content) for row in bench.stubs()] == [body]
    bench.database.close()


def test_a_sync_block_over_an_async_session_says_what_to_write(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.database.async_session() as session:
            with (
                pytest.raises(UsageError, match="async with"),
                bench.transaction(session),
            ):
                pass
        await bench.database.close_async()

    asyncio.run(scenario())


def test_a_session_of_another_database_is_refused(bench: Bench, tmp_path: Path) -> None:
    # Given a session of another database that has our tables too
    other = Database(f"sqlite:///{tmp_path / 'other.db'}", prefix="rmq_", connections=1)
    other.create_tables()

    # When a message is written into it, Then it is refused: nobody would look for it there
    with (
        other.session() as session,
        bench.transaction(session) as tx,
        pytest.raises(UsageError, match=r"bound to sqlite:///.*other\.db, but this application's"),
    ):
        tx.send("orders", {"id": 1})

    with other.engine.connect() as connection:
        assert connection.execute(select(other.stubs)).all() == []
    other.close()


def test_another_database_of_the_same_server_is_refused(postgres_url: str) -> None:
    bench = Bench(postgres_url)
    postgres = create_engine(make_url(postgres_url).set(database="postgres"))

    with (
        Session(postgres) as session,
        bench.transaction(session) as tx,
        pytest.raises(UsageError, match="never be sent"),
    ):
        tx.send("orders", {"id": 1})

    postgres.dispose()
    bench.database.close()


def test_another_engine_and_another_spelling_of_our_database_are_ours(bench: Bench) -> None:
    url = bench.database.engine.url
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        folder, name = url.database.rsplit("/", 1)
        respelled = url.set(database=f"{folder}/./{name}")
    elif url.get_backend_name() == "mysql":
        respelled = url.set(host="localhost")
    else:
        respelled = url.update_query_dict({"application_name": "shop"})
    for each in (url, respelled):
        engine = create_engine(each)
        with Session(engine) as session, bench.transaction(session) as tx:
            tx.send("orders", {"id": 1})
        engine.dispose()

    assert len(bench.ids()) == 2


def test_one_id_can_be_written_once(bench: Bench) -> None:
    with bench.transaction() as tx:
        tx.send("orders", {"id": 1}, message_id="C" * 32)

    def again() -> None:
        with bench.transaction() as tx:
            insert_order(tx.session)
            tx.send("orders", {"id": 1}, message_id="C" * 32)

    with pytest.raises(MessageRefused, match=f"the message id {'C' * 32} is used already") as told:
        again()

    assert isinstance(told.value.__cause__, IntegrityError)
    assert (bench.ids(), bench.orders()) == (["C" * 32], 0)


def test_one_id_can_be_written_once_also_by_send_many(bench: Bench) -> None:
    def send(*ids: str) -> None:
        with bench.transaction() as tx:
            insert_order(tx.session)
            tx.send_many("orders", ids, message_id=str)

    with pytest.raises(MessageRefused, match=f"the message id {'D' * 32} stands twice"):
        send("C" * 32, "D" * 32, "D" * 32)
    send("C" * 32)
    with pytest.raises(MessageRefused, match="one of these 2 message ids is used already"):
        send("C" * 32, "D" * 32)

    assert (bench.ids(), bench.orders()) == (["C" * 32], 1)


def test_a_send_after_the_block_is_refused_instead_of_lost(bench: Bench) -> None:
    with bench.transaction() as tx:
        insert_order(tx.session)

    with pytest.raises(UsageError, match="has ended"):
        tx.send("orders", {"id": 1})

    assert bench.stubs() == []


def test_a_stub_has_its_row_after_the_changes_that_were_made_before_it(bench: Bench) -> None:
    """Who waits for a row that another one changed gets the later stub."""
    statements: list[str] = []
    event.listen(
        bench.database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, *_: statements.append(statement),
    )
    with bench.transaction() as tx:
        tx.session.add(Unsaved(id=1))
        tx.send("orders", {"id": 1}, key=None, ordering_key=None)

    orders, stubs = (
        next(i for i, said in enumerate(statements) if f"INSERT INTO {table}" in said)
        for table in ("orders", "rmq_message_stub")
    )
    assert orders < stubs
    (row,) = bench.stubs()
    assert (row.message_key, row.ordering_key) == ("", "")


def test_messages_of_a_joined_transaction_that_nobody_commits_are_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The query began a transaction, so the block joined it, and the owner forgot it."""
    with bench.database.session() as session:
        session.execute(text("SELECT 1"))
        with bench.transaction(session) as tx:
            tx.send("orders", {"id": 1})

    assert (bench.ids(), bench.handed) == ([], [])
    (line,) = [each.getMessage() for each in caplog.records]
    assert "1 message(s) were written into a transaction that was closed without commit" in line


def test_messages_that_somebody_decided_against_are_not_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def joined() -> Iterator[Session]:
        with bench.database.session() as session:
            insert_order(session)
            with bench.transaction(session) as tx:
                tx.send("orders", {"id": 1})
            yield session

    def fails_inside() -> None:
        with bench.database.session() as session:
            insert_order(session)
            with bench.transaction(session) as tx:
                tx.send("orders", {"id": 1})
            raise ZeroDivisionError

    for session in joined():
        session.rollback()
    for session in joined():
        session.begin_nested()
        session.rollback()
        session.rollback()
    with pytest.raises(ZeroDivisionError):
        fails_inside()

    assert bench.ids() == []
    assert caplog.records == []


@pytest.mark.parametrize("joins", [False, True])
def test_a_send_that_nobody_awaited_fails_its_block_instead_of_being_lost(
    bench: Bench, joins: bool
) -> None:
    async def block() -> None:
        async with bench.database.async_session() as session:
            if joins:
                await session.begin()
            async with bench.transaction(session) as tx:
                await tx.send("orders", {"id": 1})
                tx.send("orders", {"id": 2})  # type: ignore[unused-coroutine]

    async def scenario() -> None:
        with pytest.raises(UsageError, match=r"was not awaited .* write `await tx.send"):
            await block()
        await bench.database.close_async()

    asyncio.run(scenario())

    assert bench.ids() == []


def test_a_send_may_be_awaited_as_a_task_and_together_with_other_work(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.transaction() as tx:
            await asyncio.create_task(tx.send("orders", {"id": 1}))
            await asyncio.gather(tx.send("orders", {"id": 2}), asyncio.sleep(0))
        await bench.database.close_async()

    asyncio.run(scenario())

    assert len(bench.ids()) == 2
