"""Several databases in one application: whose stub, whose consume log, and what is refused."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_resending import NoticeReading, Resending, resend_all
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_tables import our_tables
from reliable_mq.errors import ConfigurationError, UsageError


@pytest.fixture
def shop(database_url: str, other_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    """An application with the databases "main" and "billing"."""
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'store'}",
        database=database_url,
        databases={"billing": other_url},
    )
    mq.create_tables()
    for database in mq.databases.values():
        with database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id INTEGER)"))
    yield mq
    mq.close()


def effects(database: Database) -> list[int]:
    with database.engine.begin() as connection:
        return sorted(connection.execute(text("SELECT id FROM effects")).scalars())


def statuses(database: Database) -> list[int]:
    with database.engine.begin() as connection:
        return list(connection.execute(select(database.stubs.c.status)).scalars())


def record(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def test_tables_are_made_in_each_database_and_named_with_it(
    database_url: str, other_url: str
) -> None:
    more = {"billing": other_url}
    mq = ReliableMQ("shop", database=database_url, databases=more, table_prefix="other_")
    names = mq.create_tables()
    again = mq.create_tables()
    mq.close()

    assert {name.partition(".")[0] for name in names} == {"main", "billing"}
    assert "billing.other_message_stub" in names
    assert again == []


def test_a_stub_lies_beside_the_rows_of_its_transaction(shop: ReliableMQ) -> None:
    with shop.transaction(database="billing") as tx:
        record(tx.session, 1)
        tx.send("invoices", {"id": 1})
    with contextlib.suppress(ValueError), shop.transaction(database="billing") as tx:
        tx.send("invoices", {"id": 2})
        raise ValueError("no")

    billing = shop.databases["billing"]
    assert (effects(billing), len(statuses(billing))) == ([1], 1)
    assert statuses(shop.database) == []
    until(lambda: statuses(billing) == [1])  # no group is required: the acknowledgement confirms


def test_a_session_chooses_its_database_by_itself(shop: ReliableMQ, other_url: str) -> None:
    engine = create_engine(other_url)
    with Session(engine) as session, shop.transaction(session) as tx:
        tx.send("invoices", {"id": 1})
    engine.dispose()
    with shop.databases["billing"].session() as session, shop.transaction(session) as tx:
        tx.send("invoices", {"id": 2})

    assert len(statuses(shop.databases["billing"])) == 2
    assert statuses(shop.database) == []


def test_so_does_every_other_form_of_transaction(shop: ReliableMQ) -> None:
    billing = shop.databases["billing"]

    async def on_a_loop() -> None:
        async with shop.transaction(database="billing") as tx:
            await tx.send("invoices", {"id": 1})
        async with billing.async_session() as session, shop.transaction(session) as tx:
            await tx.send("invoices", {"id": 2})
        async with billing.async_engine.connect() as connection, shop.transaction(connection) as tx:
            await tx.send("invoices", {"id": 3})
        await billing.close_async()

    asyncio.run(on_a_loop())
    with billing.engine.connect() as connection, shop.transaction(connection) as tx:
        tx.send("invoices", {"id": 4})

    assert (len(statuses(billing)), statuses(shop.database)) == (4, [])


def test_a_session_of_another_database_than_the_named_one_is_refused(shop: ReliableMQ) -> None:
    with (
        shop.database.session() as session,
        pytest.raises(UsageError, match="never be sent"),
        shop.transaction(session, database="billing") as tx,
    ):
        tx.send("invoices", {"id": 1})


def test_effect_log_and_own_messages_of_a_handler_lie_in_its_database(shop: ReliableMQ) -> None:
    @shop.consumer("invoices", group="ledger", database="billing")
    def enter(invoice: dict[str, int], session: Session) -> None:
        record(session, invoice["id"])
        with pytest.raises(UsageError, match=r"write mq\.transaction\(session\)"):
            shop.transaction(database="billing")
        with shop.transaction(session) as tx:
            tx.send("entries", invoice)

    billing = shop.databases["billing"]
    with shop:
        with shop.transaction(database="billing") as tx:
            tx.send("invoices", {"id": 7})
        until(lambda: statuses(billing) == [1, 1])

    assert (effects(billing), effects(shop.database)) == ([7], [])
    with billing.engine.begin() as connection:
        groups = connection.execute(select(billing.logs.c.consumer_group)).scalars().all()
    assert "ledger" in groups
    assert statuses(shop.database) == []


@pytest.mark.parametrize(
    ("databases", "says"),
    [
        ({"main": "sqlite:///b.db"}, "is not allowed as a name"),
        ({"Billing": "sqlite:///b.db"}, "is not allowed as a name"),
        ({"": "sqlite:///b.db"}, "is not allowed as a name"),
        ({"billing": "sqlite:///./a.db"}, "'main' and 'billing' are the same"),
        ({"billing": ""}, "'billing' has no URL"),
        ({"billing": "nonsense"}, "is not an SQLAlchemy URL"),
        ({"billing": 5}, "setting databases.billing"),
    ],
)
def test_databases_that_cannot_be_are_one_line_that_says_which(
    databases: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        _ = ReliableMQ("shop", database="sqlite:///a.db", databases=databases).database

    assert "\n" not in str(caught.value)


def test_a_name_that_no_database_has_is_refused_where_it_is_written() -> None:
    mq = ReliableMQ("shop", databases={"billing": "sqlite:///b.db"})
    wrong: list[Callable[[], object]] = [
        lambda: mq.transaction(database="bills"),
        lambda: mq.consumer("invoices", group="ledger", database="bills"),
        lambda: mq.scheduler(database="bills"),
    ]

    for call in wrong:
        with pytest.raises(ConfigurationError, match="no database 'bills'; known: billing"):
            call()
    with pytest.raises(ConfigurationError, match="only databases=billing: name one"):
        mq.transaction()


def test_databases_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_DATABASES", '{"billing": "sqlite:///b.db"}')
    monkeypatch.setenv("RELIABLE_MQ_DATABASE", "sqlite:///a.db")

    assert list(ReliableMQ("shop").databases) == ["main", "billing"]


def test_a_database_without_our_tables_is_named_at_the_start(
    database_url: str, other_url: str, tmp_path: Path
) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'store'}",
        database=database_url,
        databases={"billing": other_url},
    )
    mq.database.create_tables()
    create_engine(other_url).connect().close()  # an SQLite file comes into being

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"database 'billing': table rmq_\w+ is missing"):
        mq.start()
    mq.close()


class StuckScheduler:
    """Stands for one whose database does not answer."""

    def __init__(self) -> None:
        self.looks = threading.Event()
        self.answers = threading.Event()

    def run_once(self, now: float) -> object:
        self.looks.set()
        self.answers.wait(30)
        raise ConnectionError("away")


def test_a_database_that_is_away_delays_no_other_ones_resends(shop: ReliableMQ) -> None:
    stuck, stopped = StuckScheduler(), threading.Event()
    looked: list[float] = []

    class Looking:
        def run_once(self, now: float) -> object:
            if stuck.looks.is_set():
                looked.append(now)
            if len(looked) == 3:
                stopped.set()
                stuck.answers.set()
            raise ConnectionError("nothing to do")

    reading = NoticeReading(shop._connections, {}, 1.0)
    nobody = shop.alerts()
    schedulers = [
        Resending("main", stuck, nobody, lambda: 1.0),  # type: ignore[arg-type]
        Resending("billing", Looking(), nobody, lambda: 1.0),  # type: ignore[arg-type]
    ]
    resend_all(schedulers, reading, stopped, interval=0.01)

    assert len(looked) >= 3


def test_tables_that_are_described_again_stay_as_they_are() -> None:
    """All databases of a process share them: a second description would add its constraints."""
    tables = our_tables("rmq_", by_day=False)
    before = [str(CreateTable(each)) for each in (tables.runs, tables.findings)]

    again = run_table(tables.metadata, "rmq_"), finding_table(tables.metadata, "rmq_")

    assert again == (tables.runs, tables.findings)
    assert [str(CreateTable(each)) for each in again] == before
