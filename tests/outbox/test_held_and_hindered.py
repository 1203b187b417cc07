"""Whatever comes in between, business and the message that waits are committed together."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.outbox.benches import Bench
from tests.outbox.test_held_stubs import ORDER, Held

from reliable_mq.errors import UsageError


class Tables(DeclarativeBase):
    """The application's tables."""


class Customer(Tables):
    """A row of a table that nobody has created."""

    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def held(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(postgres_url, monkeypatch)
    yield made
    made.database.close()


@pytest.mark.parametrize("how_many", [1, 3])
def test_a_rollback_below_sqlalchemy_takes_messages_back_too(held: Held, how_many: int) -> None:
    def place(*, goes_on: bool) -> None:
        with held.transaction() as tx:
            result: Any = tx.session.execute(ORDER, {"id": 1})
            for _ in range(how_many):
                tx.send("orders", {})
            result.connection.connection.driver_connection.rollback()
            if goes_on:
                with suppress(UsageError):
                    tx.session.execute(ORDER, {"id": 2})

    for goes_on in (False, True):
        with pytest.raises(UsageError, match="rolled this transaction back"):
            place(goes_on=goes_on)
        assert (held.stubs(), held.orders()) == ([], 0)
        held.warm()
    held.place("b")
    assert held.orders() == 1


def test_who_ignores_an_interruption_does_not_commit_without_the_message(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may raise an error anywhere, such as Celery's soft time limit."""

    class SoftLimit(Exception): ...

    faults = [SoftLimit()]
    insert = held.outbox.write_held

    def interrupted(*given: Any) -> Any:
        if faults:
            raise faults.pop()
        return insert(*given)

    monkeypatch.setattr(held.outbox, "write_held", interrupted)
    with held.transaction() as tx:
        tx.session.execute(ORDER, {"id": 0})
        message_id = tx.send("orders", {})
        with suppress(SoftLimit):
            tx.session.execute(text("SELECT pg_sleep(0)"))
        tx.session.execute(ORDER, {"id": 1})

    assert (held.ids(), held.handed, held.orders()) == ([message_id], [message_id], 2)


def test_a_table_of_the_application_that_is_missing_is_not_taken_for_ours(
    database_url: str,
) -> None:
    """Its rows are flushed at the end of the block, together with our COMMIT."""
    bench = Bench(database_url)

    def place() -> None:
        with bench.transaction() as tx:
            tx.send("orders", {})
            tx.session.add(Customer(id=1))

    with pytest.raises(DBAPIError, match="customers"):
        place()

    assert bench.stubs() == []
    bench.database.close()


def test_nothing_waits_where_a_class_of_the_application_commits(held: Held) -> None:
    commits = []

    class Connection(psycopg.Connection[Any]):
        def commit(self) -> None:
            commits.append(self)
            super().commit()

    def connect(_dialect: object, _record: object, words: Any, named: Any) -> Any:
        return Connection.connect(*words, **named)

    event.listen(held.database.engine, "do_connect", connect)
    held.database.engine.dispose()
    held.warm()
    commits.clear()
    held.place("a")

    assert (held.saved, len(commits)) == (0, 1)


def test_a_session_is_freed_with_its_block(held: Held) -> None:
    """No circle keeps it, and the objects of its transaction, until a collection."""

    def place() -> "weakref.ref[Session]":
        with held.transaction() as tx:
            tx.session.execute(ORDER, {"id": 1})
            tx.send("orders", {})
            return weakref.ref(tx.session)

    gc.disable()
    try:
        assert place()() is None
    finally:
        gc.enable()
