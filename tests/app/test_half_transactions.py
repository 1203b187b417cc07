"""`mq.transaction(half=True)` and transaction listeners, with a real broker."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import Decision, Message, ReceivedMessage, ReliableMQ
from reliable_mq.errors import ConfigurationError, MessageRefused, RemoteError, UsageError

HASTY = {"transactionCheckInterval": "100", "transactionTimeOut": "200"}
HASTY["transactionCheckMax"] = "100000"  # asks that nobody hears count: a process may start slowly


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=database_url)
    mq.create_tables()
    prepare(mq)
    yield mq
    mq.close()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    """Give a broker that asks at once."""
    with ReliableMQBroker(tmp_path_factory.mktemp("hasty"), settings=HASTY) as broker:
        yield broker


def prepare(mq: ReliableMQ) -> None:
    with mq.database.engine.begin() as connection:
        for table in ("placed", "shipped"):
            connection.execute(text(f"CREATE TABLE {table} (id TEXT)"))


def ship(mq: ReliableMQ, topic: str = "orders", group: str = "shipping") -> None:
    @mq.consumer(topic, group=group)
    def pack(order: str, session: Session) -> None:
        session.execute(text("INSERT INTO shipped VALUES (:id)"), {"id": order})


def column(mq: ReliableMQ, table: str) -> list[str]:
    with mq.database.engine.begin() as connection:
        return sorted(connection.execute(text(f"SELECT id FROM {table}")).scalars())


def stubs(mq: ReliableMQ) -> list[Any]:
    with mq.database.engine.begin() as connection:
        return list(connection.execute(select(mq.database.stubs)))


def insert(session: Session, order: str) -> None:
    session.execute(text("INSERT INTO placed VALUES (:id)"), {"id": order})


def pending(mq: ReliableMQ) -> int:
    """Return how many halves wait at the embedded broker."""
    broker: Any = mq._connections._broker
    return len(broker._core.state.halves)


class NoDeal(Exception):
    """The business says no."""


def place(mq: ReliableMQ, order: str, *, fails: bool = False) -> None:
    with mq.transaction(half=True) as tx:
        insert(tx.session, order)
        tx.send("orders", order, key=order, ordering_key="c1")
        if fails:
            raise NoDeal


def test_a_half_is_seen_when_its_transaction_committed_and_gone_when_it_did_not(
    shop: ReliableMQ,
) -> None:
    ship(shop)
    with shop:
        place(shop, "a")
        with pytest.raises(NoDeal):
            place(shop, "b", fails=True)
        place(shop, "c")
        until(lambda: [row.status for row in stubs(shop)] == [1, 1])
        until(lambda: pending(shop) == 0)  # nobody had to ask

    assert column(shop, "placed") == column(shop, "shipped") == ["a", "c"]
    assert [(row.count, row.broker_name is not None) for row in stubs(shop)] == [(1, True)] * 2


@pytest.mark.parametrize("half", [False, True], ids=["message", "half"])
def test_what_was_committed_a_moment_ago_is_sent_by_close(shop: ReliableMQ, half: bool) -> None:
    with shop.transaction(half=half) as tx:
        tx.send("orders", "a", required_groups=())
    shop.close()
    assert [row.status for row in stubs(shop)] == [1]


def test_asynchronous_code_has_halves_too(shop: ReliableMQ) -> None:
    async def scene() -> None:
        async with shop.transaction(half=True) as tx:
            await tx.session.execute(text("INSERT INTO placed VALUES ('a')"))
            await tx.send("orders", "a")
        block = shop.transaction(half=True)
        tx = await block.__aenter__()
        await tx.send("orders", "b")
        await tx.session.rollback()
        with pytest.raises(UsageError, match="has taken back 1 message"):
            await block.__aexit__(None, None, None)
        await shop.database.close_async()

    ship(shop)
    with shop:
        asyncio.run(scene())
        until(lambda: [row.status for row in stubs(shop)] == [1])
        until(lambda: pending(shop) == 0)
    assert column(shop, "shipped") == ["a"]


def test_connections_and_many_messages_at_once_have_halves_too(shop: ReliableMQ) -> None:
    ship(shop)
    with shop:
        with shop.database.engine.connect() as connection:
            with shop.transaction(connection, half=True) as tx:
                connection.execute(text("INSERT INTO placed VALUES ('a')"))
                tx.send_many("orders", ["a", "b", "c"], ordering_key="c1")
            with shop.transaction(connection, half=True) as tx:
                tx.send_many("orders", ["d", "e"])
                connection.rollback()
        until(lambda: [row.status for row in stubs(shop)] == [1, 1, 1])
        until(lambda: pending(shop) == 0)
    assert column(shop, "shipped") == ["a", "b", "c"]


def test_a_handler_sends_halves_in_its_own_transaction(shop: ReliableMQ) -> None:
    @shop.consumer("orders", group="payments")
    def pay(order: str, session: Session) -> None:
        with shop.transaction(session, half=True) as tx:
            tx.send("paid", order)

    @shop.consumer("orders", group="points")
    async def points(order: str, session: AsyncSession) -> None:
        async with shop.transaction(session, half=True) as tx:
            await tx.send("points", order)

    ship(shop, "paid")
    ship(shop, "points", "letters")
    with shop:
        place(shop, "a")
        until(lambda: [row.status for row in stubs(shop)] == [1, 1, 1])
    assert column(shop, "shipped") == ["a", "a"]


def test_a_broker_that_takes_no_halves_fails_the_transaction(
    database_url: str, tmp_path: Path
) -> None:
    settings = {"rejectTransactionMessage": "true"}
    with ReliableMQBroker(tmp_path, settings=settings) as broker:
        mq = ReliableMQ("shop", broker=broker.name_server_address, database=database_url)
        mq.create_tables()
        prepare(mq)
        with pytest.raises(RemoteError, match="forbidden"):
            place(mq, "a")
        assert (column(mq, "placed"), stubs(mq)) == ([], [])
        mq.close()


def test_a_delayed_half_is_refused(shop: ReliableMQ) -> None:
    def delayed() -> None:
        with shop.transaction(half=True) as tx:
            tx.send("orders", "a", delay=timedelta(seconds=5))

    with pytest.raises(MessageRefused, match="delayed"):
        delayed()


@pytest.mark.processes
def test_only_processes_with_the_database_of_a_half_answer_for_it(
    hasty: ReliableMQBroker, tmp_path: Path
) -> None:
    """Two installations with one name and one broker do not roll each other's halves back."""

    def application(database: str) -> ReliableMQ:
        url = f"sqlite:///{tmp_path / database}"
        mq = ReliableMQ("shop", broker=hasty.name_server_address, database=url)
        mq.create_tables()
        return mq

    here, there = application("here.db"), application("there.db")
    there._half_messages.join()
    with here.transaction(half=True) as tx:
        savepoint = tx.session.begin_nested()
        tx.send("orders", "a")
        savepoint.rollback()
    until(lambda: [row.status for row in stubs(here)] == [2])
    assert stubs(there) == []
    here.close()
    there.close()


@pytest.mark.processes
def test_each_database_of_an_application_has_its_own_halves(
    hasty: ReliableMQBroker, tmp_path: Path
) -> None:
    mq = ReliableMQ(
        "two",
        broker=hasty.name_server_address,
        database=f"sqlite:///{tmp_path / 'main.db'}",
        databases={"billing": f"sqlite:///{tmp_path / 'billing.db'}"},
    )
    mq.create_tables()
    for name in mq.databases:
        with mq.transaction(database=name, half=True) as tx:
            tx.send("of-two", name, required_groups=())
            savepoint = tx.session.begin_nested()
            tx.send("of-two", f"not {name}")
            savepoint.rollback()

    def settled(name: str) -> list[tuple[int, bytes]]:
        database = mq.databases[name]
        with database.engine.begin() as connection:
            table = database.stubs
            rows = connection.execute(select(table).order_by(table.c.seq))
            return [(row.status, bytes(row.content)) for row in rows]

    for name in mq.databases:  # a tombstone lies where its stub would have been
        until(lambda name=name: settled(name) == [(1, name.encode()), (2, b"")])  # type: ignore[misc]
    mq.close()


@pytest.mark.processes
def test_a_process_that_only_works_answers_for_one_that_only_sent(
    hasty: ReliableMQBroker, database_url: str
) -> None:
    def application() -> ReliableMQ:
        broker, name = hasty.name_server_address, "shop"
        return ReliableMQ(name, broker=broker, database=database_url, relay_lease_seconds=0.2)

    sender, worker = application(), application()
    sender.create_tables()
    prepare(sender)
    ship(worker, "lonely", "lonely-shipping")
    sender._connections.commit_halves = lambda _halves: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    sender.topic("lonely", groups=["lonely-shipping"])
    with sender.transaction(half=True) as tx:
        tx.send("lonely", "a")
    sender._half_messages.close()
    sender._connections.close()
    with worker:
        until(lambda: [row.status for row in stubs(worker)] == [1])
    assert column(worker, "shipped") == ["a"]
    sender.close()


class Ledger:
    """A listener that says what it is told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.checked = 0

    def execute(self, message: Message, argument: Any) -> Decision:
        if isinstance(argument, Exception):
            raise argument
        decision: Decision = argument
        return decision

    def check(self, message: ReceivedMessage) -> Decision:
        self.checked += 1
        decision: Decision = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return decision


@pytest.mark.processes
def test_what_a_listener_does_not_decide_at_once_is_asked_of_it_later(
    hasty: ReliableMQBroker, tmp_path: Path
) -> None:
    ledger = Ledger(Decision.UNKNOWN, "nonsense", Decision.COMMIT)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    mq = ReliableMQ("bank", broker=hasty.name_server_address, database=url)
    mq.create_tables()
    received: list[str] = []
    mq.transaction_listener("transfers")(ledger)

    @mq.consumer("transfers", group="readers", ordered=False)
    def read(body: str) -> None:
        received.append(body)

    with mq:
        send = mq.producer.send_in_transaction
        assert send("transfers", "now", Decision.COMMIT).decision is Decision.COMMIT
        until(lambda: received == ["now"])
        assert send("transfers", "gone", Decision.ROLLBACK).decision is Decision.ROLLBACK
        with pytest.raises(NoDeal):
            send("transfers", "later", NoDeal())
        until(lambda: received == ["now", "later"])
        with pytest.raises(UsageError, match="Decision"):
            send("transfers", "odd", "yes")
        until(lambda: len(received) == 3)

        async def awaited() -> Any:
            return await mq.producer.send_in_transaction_async("transfers", "x", Decision.COMMIT)

        assert asyncio.run(awaited()).decision is Decision.COMMIT
        until(lambda: len(received) == 4)
    assert ledger.checked >= 4


def test_listeners_that_cannot_work_are_refused_at_once(shop: ReliableMQ) -> None:
    class NoCheck:
        def execute(self, message: Message, argument: Any) -> Decision:
            return Decision.COMMIT

    class Needy(Ledger):
        def __init__(self, account: str) -> None:
            super().__init__(account)

    with pytest.raises(UsageError, match="check"):
        shop.transaction_listener("a")(NoCheck)
    with pytest.raises(UsageError, match="without arguments"):
        shop.transaction_listener("a")(Needy)
    with pytest.raises(ConfigurationError, match="topic"):
        shop.transaction_listener("a b")(Ledger)
    assert shop.transaction_listener("a")(Ledger) is Ledger
    with pytest.raises(UsageError, match="already"):
        shop.transaction_listener("a")(Ledger())
    with pytest.raises(UsageError, match="no transaction listener"):
        shop.producer.send_in_transaction("b", "x")
