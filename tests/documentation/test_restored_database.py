"""What the page "Backups" says to do after a restore, done: each order is paid once."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.app.test_lost_commits import back_up, restore
from tests.waiting import until

from reliable_mq import Client, ReceivedMessage, ReliableMQ, Retry
from reliable_mq.cli.main import DONE, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "backups.md"
pytestmark = pytest.mark.processes

TABLES = (
    "CREATE TABLE orders (id SERIAL PRIMARY KEY, customer TEXT)",
    "CREATE TABLE payments (order_id INTEGER, customer TEXT)",
)
BUSY, WAITS = "busy", 0.2


def shown(heading: str, language: str) -> list[str]:
    """Return the blocks of a language in the part of the page under a heading."""
    part = PAGE.read_text().partition(f"# {heading}\n")[2]
    part = re.split(r"^#", part, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", part, re.DOTALL | re.MULTILINE)


def resets(heading: str) -> list[list[str]]:
    lines = "".join(shown(heading, "sh")).splitlines()
    return [shlex.split(each)[1:] for each in lines if " group reset " in each]


def called(*words: str, code: int = DONE) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert (ended.value.code or DONE) == code, words


def follow(commands: list[list[str]], changes: dict[str, str]) -> None:
    """Do commands of the page with the addresses and times of the test."""
    for words in commands:
        called(*(changes.get(each, each) for each in words))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def broker(store: Path) -> Iterator[str]:
    with ReliableMQBroker(store, "ASYNC_FLUSH") as running:
        yield running.name_server_address


class Shop:
    """An application whose group pays orders, and what its database holds."""

    def __init__(self, url: str, broker: str) -> None:
        self.broker = broker
        self.mq = ReliableMQ(
            "shop",
            broker=broker,
            database=url,
            resend_interval_seconds=0.1,
            resend_backlog_wait_seconds=0.1,
        )
        self.mq.consumer("orders", group="payments")(self.pay)
        self.has_failed = False

    def pay(self, order: dict[str, int | str], session: Session, message: ReceivedMessage) -> None:
        if order["customer"] == BUSY and not message.reconsume_times:
            self.has_failed = True
            raise Retry(after=WAITS)
        session.execute(text("INSERT INTO payments VALUES (:id, :customer)"), order)

    def place(self, *customers: str) -> None:
        for each in customers:
            with self.mq.transaction() as tx:
                number = tx.session.execute(
                    text("INSERT INTO orders (customer) VALUES (:name) RETURNING id"),
                    {"name": each},
                ).scalar_one()
                tx.send("orders", {"id": number, "customer": each})

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self.mq.database.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def paid(self) -> list[str]:
        return [str(name) for (name,) in self.rows("SELECT customer FROM payments ORDER BY 1")]

    def unconfirmed(self) -> int:
        table = self.mq.database.stubs.name
        return len(self.rows(f"SELECT 1 FROM {table} WHERE status = 0"))

    def is_settled(self) -> bool:
        """Let the scheduler do a turn; return whether nothing waits for anything."""
        self.mq.resend_once()
        return self.unconfirmed() == 0 and lag(self.broker) == 0


@contextmanager
def shop(url: str, broker: str) -> Iterator[Shop]:
    made = Shop(url, broker)
    try:
        yield made
    finally:
        made.mq.close()


def sent(broker: str, count: int) -> None:
    """Wait until the topic holds so many messages."""
    with Client(broker) as client:

        def ends() -> int:
            found = client.admin.offsets.progress("payments", "orders").value.queues
            return sum(row.end for row in found)

        until(lambda: ends() == count, seen=ends)


def lag(broker: str, topic: str = "", group: str = "payments") -> int:
    """Return how many messages the group has not consumed yet."""
    with Client(broker) as client:
        return client.admin.offsets.progress(group, topic).value.lag


@pytest.fixture
def restored(postgres_url: str, broker: str) -> str:
    """Give the URL of a restored database. The broker has messages of orders that were lost.

    "ann" was paid before the backup, "bob" after it. The orders of the others were lost: "cid" had
    been paid, "dan" was not delivered yet, and the attempt for the busy customer failed.
    """
    with shop(postgres_url, broker) as before:
        before.mq.create_tables()
        with before.mq.database.engine.begin() as connection:
            for each in TABLES:
                connection.execute(text(each))
        with before.mq:
            before.place("ann")
            until(lambda: before.unconfirmed() == 0)
    with shop(postgres_url, broker) as stopped:
        stopped.place("bob")
        sent(broker, 2)
    back_up(postgres_url)
    with shop(postgres_url, broker) as after, after.mq:
        after.place("cid", BUSY)
        until(lambda: after.paid() == ["ann", "bob", "cid"])
        until(lambda: after.has_failed)
    with shop(postgres_url, broker) as stopped:
        stopped.place("dan")
        sent(broker, 5)
    until(lambda: lag(broker, "%RETRY%payments") == 1)
    restore(postgres_url)
    return postgres_url


def go_on(url: str, broker: str, *customers: str) -> tuple[list[str], list[int]]:
    """Start all processes, place orders, and let all of them settle; return who paid, and numbers.

    Each payment is for the customer of its order.
    """
    with shop(url, broker) as now, now.mq:
        now.place(*customers)
        until(now.is_settled)
        assert now.rows("SELECT order_id, customer FROM payments ORDER BY 1, 2") == now.rows(
            "SELECT id, customer FROM orders ORDER BY 1, 2"
        )
        numbers = [int(str(number)) for (number,) in now.rows("SELECT id FROM orders ORDER BY id")]
        return now.paid(), numbers


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_after_the_steps_of_the_page_each_order_is_paid_once_and_no_lost_one(
    restored: str, broker: str, store: Path, tmp_path: Path
) -> None:
    heading = "After you restored the database"
    with shop(restored, broker) as still:
        (statement,) = shown(heading, "sql")
        assert still.rows(statement)
    commands = resets(heading)
    assert len(commands) == 2
    follow(commands, {"127.0.0.1:9876": broker})

    paid, numbers = go_on(restored, broker, "eve", "fay", "gil", "hal")

    assert paid == ["ann", "bob", "eve", "fay", "gil", "hal"]
    assert numbers[:2] == [1, 2]
    assert min(numbers[2:]) > 1_000_000
    words = ("reconcile", "--db", restored, "--store", str(store / "store"), "--grace", "0")
    called(*words, "--out", str(tmp_path / "report"), code=2)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert {name: count for name, count in summary["verdicts"].items() if count} == {
        "settled": 6,
        "orphan": 3,
    }


def test_without_these_steps_orders_are_paid_twice(restored: str, broker: str) -> None:
    """So the test above can fail: this is what a reset to the time of the backup does."""
    called("group", "reset", "payments", "orders", "--to-start", "--broker", broker)

    with pytest.raises(AssertionError):
        go_on(restored, broker, "eve", "fay", "gil", "hal")


def test_a_group_whose_stubs_are_elsewhere_is_reset_and_has_each_effect_once(
    tmp_path: Path, broker: str
) -> None:
    url = f"sqlite:///{tmp_path}/billing.db"
    entries = text("SELECT id FROM entries ORDER BY id")

    @contextmanager
    def ledger() -> Iterator[ReliableMQ]:
        main, more = f"sqlite:///{tmp_path}/main.db", {"billing": url}
        mq = ReliableMQ("shop", broker=broker, database=main, databases=more)

        @mq.consumer("payments_made", group="ledger", database="billing")
        def enter(payment: dict[str, int], session: Session) -> None:
            session.execute(text("INSERT INTO entries VALUES (:id)"), payment)

        try:
            mq.create_tables()
            with mq.databases["billing"].engine.begin() as connection:
                connection.execute(text("CREATE TABLE IF NOT EXISTS entries (id INTEGER)"))
            yield mq
        finally:
            mq.close()

    def entered(mq: ReliableMQ) -> list[int]:
        with mq.databases["billing"].engine.begin() as connection:
            return list(connection.scalars(entries))

    def pay(number: int) -> None:
        with ledger() as mq, mq:
            with mq.transaction() as tx:
                tx.send("payments_made", {"id": number})
            until(lambda: entered(mq) == list(range(1, number + 1)))

    pay(1)
    back_up(url)
    pay(2)
    restore(url)
    (command,) = resets("Which group to skip, which to reset")
    follow([command], {"127.0.0.1:9876": broker, "2026-11-20T08:00": "-1h"})

    with ledger() as mq, mq:
        until(lambda: lag(broker, group="ledger") == 0 and entered(mq) == [1, 2])
    with ledger() as mq:
        assert entered(mq) == [1, 2]
