"""A message that is the last thing of its transaction arrives together with the COMMIT.

On PostgreSQL with psycopg, once it has prepared the insert on a connection.
"""

import select as system_select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from tests.outbox.benches import Bench
from tests.waiting_database import until_somebody_waits

from reliable_mq.database import sql_libpq
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.outbox.sql_outbox import HELD_MAX, HELD_SIZE_MAX

ORDER = text("INSERT INTO orders VALUES (:id)")
BACKEND = text("SELECT pg_backend_pid()")
USED = "reliable_mq.database.sql_prepared.execute_and_commit"
PREPARED = 7  # so many executions, and psycopg has prepared the insert


class Held(Bench):
    """An outbox on PostgreSQL, where messages may wait, and the round trips that were saved."""

    def __init__(
        self, url: str, monkeypatch: pytest.MonkeyPatch, owner: str | None = "relay"
    ) -> None:
        super().__init__(url, owner=owner)
        self.saved = 0
        self._number = 100
        self.warm()
        execute = sql_libpq.execute_and_commit

        def counted(*given: Any, **named: Any) -> int:
            self.saved += 1
            return execute(*given, **named)

        monkeypatch.setattr(USED, counted)

    def place(self, what: object, **options: Any) -> str:
        """Write an order and its message."""
        self._number += 1
        with self.transaction() as tx:
            tx.session.execute(ORDER, {"id": self._number})
            return tx.send("orders", {"what": what}, **options)

    def warm(self, **options: Any) -> None:
        """Let psycopg prepare the insert of messages with these options."""
        for _ in range(PREPARED):
            self.place("warm", **options)
        self.saved = 0
        self.forget()

    def forget(self) -> None:
        """Remove all rows."""
        with self.database.engine.begin() as connection:
            connection.execute(self.database.stubs.delete())
            connection.execute(text("DELETE FROM orders"))
        self.handed_stubs.clear()

    def orders(self) -> int:
        with self.database.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())

    @property
    def count(self) -> Any:
        return select(func.count()).select_from(self.database.stubs)


@pytest.fixture
def held(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(postgres_url, monkeypatch)
    yield made
    made.database.close()


def test_a_message_behind_the_last_statement_is_committed_with_it(held: Held) -> None:
    message_id = held.place("a", key="k")

    assert (held.saved, held.orders()) == (1, 1)
    (row,) = held.stubs()
    assert (row.message_id, row.message_key, row.content) == (message_id, "k", b'{"what":"a"}')
    assert (row.owner, row.required_groups) == ("relay", "payments")
    assert held.handed == held.read_back() == [message_id]
    written = row.create_date.timestamp()
    assert held.handed_stubs[0].create_time == pytest.approx(written, abs=0.001)


def test_a_message_with_all_its_options_arrives_with_the_commit_too(held: Held) -> None:
    options: dict[str, Any] = {"tag": "t", "correlation_id": "c", "properties": {"a": "b"}}
    held.warm(**options)

    held.place("a", **options)

    assert held.saved == 1
    (row,) = held.stubs()
    assert (row.tag, row.correlation_id) == ("t", "c")
    assert '"a": "b"' in row.properties


def test_a_statement_after_a_message_finds_it(held: Held) -> None:
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        first = tx.send("orders", {})
        assert tx.session.execute(held.count).scalar_one() == 1
        second = tx.send("orders", {})
        assert tx.session.execute(held.count).scalar_one() == 2

    assert held.ids() == held.read_back() == [first, second]
    assert held.saved == 0


def test_a_message_waits_for_nothing_if_its_transaction_is_rolled_back(held: Held) -> None:
    def place() -> None:
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 1})
            tx.send("orders", {})
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        place()

    held.place("b")
    assert (len(held.stubs()), held.orders(), len(held.handed)) == (1, 1, 1)


def test_a_rollback_within_the_block_tells_how_many_messages_it_takes_back(held: Held) -> None:
    def place() -> None:
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 1})
            tx.send("orders", {})
            tx.send("orders", {})
            tx.session.rollback()

    with pytest.raises(UsageError, match=r"taken back 2 message"):
        place()

    assert (held.stubs(), held.orders()) == ([], 0)


def test_a_savepoint_takes_back_its_own_messages_only(held: Held) -> None:
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        kept = tx.send("orders", {})
        savepoint = tx.session.begin_nested()
        tx.send("orders", {})
        savepoint.rollback()
        last = tx.send("orders", {})

    assert held.ids() == held.read_back() == [kept, last]


def test_many_messages_are_written_in_the_order_of_their_sends(held: Held) -> None:
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        ids = [tx.send("orders", {"number": number}) for number in range(HELD_MAX + 3)]
        ids.append(tx.send("orders", {}, ordering_key="k"))
        ids += tx.send_many("orders", [{}, {}])
        ids += [tx.send("orders", {}), tx.send("orders", {}, message_id="M" * 32)]
        ids.append(tx.send("orders", b"x" * (HELD_SIZE_MAX + 1)))
        ids += [tx.send("orders", b"x" * HELD_SIZE_MAX), tx.send("orders", b"x")]

    assert held.ids() == ids
    assert sorted(held.read_back()) == sorted(ids)
    assert {row.create_date for row in held.stubs()} >= {held.stubs()[-1].create_date}


def test_messages_for_any_relay_are_announced_once_with_their_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    said = "reliable_mq.outbox.sql_outbox.announce"
    monkeypatch.setattr(said, lambda _, table: told.append(table.name))
    shared = Held(postgres_url, monkeypatch, owner=None)
    told.clear()
    with shared.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        ids = [tx.send("orders", {"number": number}) for number in range(5)]
        assert told == []

    assert (shared.ids(), shared.handed, told) == (ids, ids, [shared.database.stubs.name])
    assert {row.owner for row in shared.stubs()} == {None}
    shared.database.close()


def test_who_asks_for_the_connection_finds_the_message_below_sqlalchemy(held: Held) -> None:
    """A COMMIT of the driver commits the business and its message, whoever was first."""
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        first = tx.send("orders", {})
        driver: Any = tx.session.connection().connection.driver_connection
        driver.commit()
        assert held.ids() == [first]
        tx.session.execute(ORDER, {"id": 2})
        second = tx.send("orders", {})
        driver.commit()
        assert held.ids() == [first, second]

    assert (held.saved, held.orders()) == (0, 2)


def test_nothing_waits_where_somebody_listens_for_the_begin(held: Held) -> None:
    drivers = []

    def note(_session: Session, _transaction: object, connection: Any) -> None:
        drivers.append(connection.connection.driver_connection)

    event.listen(Session, "after_begin", note)
    try:
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 1})
            message_id = tx.send("orders", {})
            drivers[-1].commit()
            assert held.ids() == [message_id]
    finally:
        event.remove(Session, "after_begin", note)


def test_a_session_of_the_caller_gets_its_message_at_once(held: Held) -> None:
    with held.database.session() as session, session.begin():
        session.execute(ORDER, {"id": 1})
        with held.transaction(session) as tx:
            tx.send("orders", {})
        driver: Any = session.connection().connection.driver_connection
        assert driver.execute("SELECT count(*) FROM rmq_message_stub").fetchone() == (1,)

    assert held.saved == 0


def test_a_table_that_is_missing_at_the_commit_is_named(held: Held) -> None:
    def place() -> None:
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 1})
            tx.send("orders", {})
            with held.database.engine.begin() as other:
                held.database.stubs.drop(other)

    with pytest.raises(ConfigurationError, match="rmq_message_stub"):
        place()

    assert held.orders() == 0


def test_a_refused_commit_takes_the_message_back(held: Held) -> None:
    with held.database.engine.begin() as connection:
        unique = "ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(unique))
    held.warm()  # psycopg forgets what it has prepared at an ALTER

    def place() -> None:
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 5})
            tx.session.execute(ORDER, {"id": 5})
            tx.send("orders", {})

    with pytest.raises(IntegrityError, match="orders_id_key"):
        place()

    assert (held.saved, held.stubs(), held.orders(), held.read_back()) == (1, [], 0, [])
    held.place("b")
    assert held.orders() == 1


def test_a_connection_that_is_lost_before_the_commit_leaves_neither(held: Held) -> None:
    def place() -> None:
        with held.transaction() as tx:
            pid = tx.session.execute(BACKEND).scalar_one()
            tx.session.execute(ORDER, {"id": 1})
            tx.send("orders", {})
            with held.database.engine.begin() as other:
                other.execute(text(f"SELECT pg_terminate_backend({pid}, 10000)"))

    with pytest.raises(DBAPIError) as told:
        place()

    assert told.value.connection_invalidated
    assert (held.stubs(), held.orders(), held.read_back()) == ([], 0, [])
    held.place("b")
    assert held.orders() == 1


def test_a_connection_that_is_lost_while_the_commit_is_awaited_is_told(held: Held) -> None:
    others = create_engine(held.database.url)
    ends = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    with ThreadPoolExecutor(1) as threads, others.begin() as other:
        other.execute(text("LOCK TABLE rmq_message_stub"))
        placing = threads.submit(held.place, "a")
        until_somebody_waits(held.database)
        other.execute(text(f"{ends} WHERE wait_event_type = 'Lock'"))
        with pytest.raises(DBAPIError) as told:
            placing.result(60)
    others.dispose()

    assert told.value.connection_invalidated
    assert "administrator command" in str(told.value)  # what the server said before it was gone
    assert (held.stubs(), held.orders()) == ([], 0)


def test_an_interruption_while_the_commit_is_awaited_closes_its_connection(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are still due: the next transaction must not read them."""

    class Interrupted:
        def register(self, *_: object) -> None: ...

        def poll(self) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(system_select, "poll", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.place("a")

    message_id = held.place("b")
    assert message_id in held.ids()
    assert len(held.stubs()) == held.orders()


def test_a_message_in_a_transaction_that_has_failed_is_refused_at_once(held: Held) -> None:
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 1})
        with pytest.raises(DBAPIError, match="nowhere"):
            tx.session.execute(text("SELECT * FROM nowhere"))
        with pytest.raises(DBAPIError, match="aborted"):
            tx.send("orders", {})
        tx.session.rollback()
