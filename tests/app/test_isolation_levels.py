"""Sends and keys in a user's transactions of each isolation level of PostgreSQL, with conflicts.

A conflict is the user's to try again: nothing of the lost transaction is left, no message either.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ, Transaction
from reliable_mq.database.sql_types import sqlstate_of
from reliable_mq.errors import CallRunning

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
LOST = "40001"
ADD = text("UPDATE accounts SET total = total + 1 WHERE name = :name")
SUM = text("SELECT sum(total) FROM accounts")


@dataclass
class Bank:
    mq: ReliableMQ
    users: Engine
    level: str

    def session(self) -> Session:
        return Session(self.users)

    def sent(self) -> list[str]:
        stubs = self.mq.database.stubs
        with self.mq.database.engine.connect() as connection:
            return sorted(connection.execute(select(stubs.c.message_key)).scalars())

    def total(self) -> int:
        with self.mq.database.engine.connect() as connection:
            return int(connection.execute(SUM).scalar_one())


def bank_of(url: str, level: str) -> Iterator[Bank]:
    mq = ReliableMQ("bank", database=url, broker="127.0.0.1:1")
    mq.create_tables()
    users = create_engine(url, isolation_level=level)
    with users.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (name TEXT PRIMARY KEY, total INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES ('a', 0), ('b', 0)"))
    yield Bank(mq, users, level)
    users.dispose()
    mq.close()


@pytest.fixture(params=LEVELS)
def bank(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Bank]:
    yield from bank_of(postgres_url, request.param)


@pytest.fixture
def strict(postgres_url: str) -> Iterator[Bank]:
    yield from bank_of(postgres_url, "SERIALIZABLE")


def state_of(work: Callable[[], object]) -> str | None:
    """Return the SQLSTATE with which some work was refused; None: it was done."""
    try:
        work()
    except DBAPIError as error:
        return sqlstate_of(error.orig)
    return None


def send(bank: Bank, session: Session, key: str) -> None:
    with bank.mq.transaction(session) as tx:
        tx.send("paid", {}, key=key, required_groups=())


def test_two_that_change_one_row_conflict_above_read_committed_and_the_loser_sends_nothing(
    bank: Bank,
) -> None:
    with bank.session() as first, bank.session() as second:
        for session in (first, second):
            session.execute(SUM)  # both have their snapshot
        first.execute(ADD, {"name": "a"})
        send(bank, first, "first")
        send(bank, second, "second")
        first.commit()
        state = state_of(lambda: second.execute(ADD, {"name": "a"}))

        if bank.level == "READ COMMITTED":
            assert state is None
            second.commit()
            assert bank.sent() == ["first", "second"]
            return
        assert state == LOST
        second.rollback()
        assert (bank.sent(), bank.total()) == (["first"], 1)
        with second.begin():  # who lost does all of it again, the send, too
            second.execute(ADD, {"name": "a"})
            send(bank, second, "second")
    assert (bank.sent(), bank.total()) == (["first", "second"], 2)


def test_a_conflict_that_shows_at_the_commit_sends_nothing_of_the_loser(strict: Bank) -> None:
    """Each reads what the other one writes: only SERIALIZABLE sees that."""
    with strict.session() as first, strict.session() as second:
        for session, name in ((first, "a"), (second, "b")):
            session.execute(SUM)
            session.execute(ADD, {"name": name})
            send(strict, session, name)
        first.commit()

        assert state_of(second.commit) == LOST
        second.rollback()

    assert (strict.sent(), strict.total()) == (["a"], 1)


def test_sends_alone_never_conflict(bank: Bank) -> None:
    """Stubs are only inserted: eight transactions at once, each with one, all commit."""
    together = threading.Barrier(8)

    def one(number: int) -> None:
        with bank.session() as session:
            send(bank, session, f"k{number}")
            together.wait(60)
            session.commit()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(8)))

    assert bank.sent() == [f"k{number}" for number in range(8)]


def test_a_key_that_two_transactions_use_at_once_counts_once_at_each_level(bank: Bank) -> None:
    calls: list[str] = []

    @bank.mq.idempotent(key="request", scope="pay")
    def pay(request: str, tx: Transaction) -> str:
        calls.append(request)
        tx.session.execute(ADD, {"name": "a"})
        tx.send("paid", {}, key=request, required_groups=())
        return f"paid {request}"

    def work(session: Session) -> str:
        with bank.mq.transaction(session) as tx:
            return str(pay("r-1", tx=tx))

    with bank.session() as first, bank.session() as second:
        second.execute(SUM)  # its snapshot is older than the other's commit
        work(first)
        first.commit()
        if bank.level == "READ COMMITTED":
            assert work(second) == "paid r-1"
        elif bank.level == "REPEATABLE READ":  # the key is taken, and its result is not seen
            with pytest.raises(CallRunning):
                work(second)
        else:
            assert state_of(lambda: work(second)) == LOST
        second.rollback()
        with second.begin():
            assert work(second) == "paid r-1"

    assert (bank.sent(), bank.total(), calls) == (["r-1"], 1, ["r-1"])


def test_retries_of_losers_bring_each_effect_with_its_message_exactly_once(strict: Bank) -> None:
    """Six threads of writers that read what the others write; each tries until it commits."""
    losses: list[str] = []
    together = threading.Barrier(6)

    def one(number: int) -> None:
        name, key = "ab"[number % 2], f"k{number}"
        is_first = True
        while True:
            with strict.session() as session:
                try:
                    session.execute(SUM)
                    if is_first:
                        is_first = False
                        together.wait(60)
                    session.execute(ADD, {"name": name})
                    send(strict, session, key)
                    session.commit()
                except DBAPIError as error:
                    assert sqlstate_of(error.orig) == LOST  # noqa: PT017 - others are faults
                    losses.append(key)
                else:
                    return

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(6)))

    assert losses
    assert (strict.sent(), strict.total()) == ([f"k{number}" for number in range(6)], 6)
