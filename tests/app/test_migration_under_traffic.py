"""`reliable-mq migrate` on a database that applications of the release before are using."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import REVISION, revision_of, version_table

ORDERS_MIN = 20
"""So many orders are placed before, and after, the migration."""


class Orders:
    """Places orders in a thread until the block ends; raises what a transaction raised."""

    def __init__(self, mq: ReliableMQ) -> None:
        self._mq = mq
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.placed = 0

    def __enter__(self) -> "Orders":
        self._placing = self._pool.submit(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pool.shutdown()
        self._placing.result()

    def _place(self) -> None:
        while not self._is_over.is_set():
            with self._mq.transaction() as tx:
                tx.send("orders", str(self.placed))
            self.placed += 1

    def wait_for_more(self) -> None:
        """Wait until some more orders are placed."""
        goal = self.placed + ORDERS_MIN
        until(lambda: self.placed >= goal, possible=lambda: not self._placing.done())


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=database_url)
    mq.create_tables()
    with mq.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE shipped (id VARCHAR(20))"))

    @mq.consumer("orders", group="shipping")
    def ship(order: str, session: Session) -> None:
        session.execute(text("INSERT INTO shipped VALUES (:id)"), {"id": order})

    yield mq
    mq.close()


def make_older(database: Database) -> None:
    """Leave the tables of the first release."""
    with database.engine.begin() as connection:
        for name in ("watched_time", "periodic", "periodic_tick"):
            connection.execute(text(f"DROP TABLE rmq_{name}"))
        if database.engine.dialect.name == "sqlite":  # it does not drop the index of a column
            connection.execute(text("DROP INDEX rmq_consume_log_failed"))
        for name in ("failure", "failures"):
            connection.execute(text(f"ALTER TABLE rmq_consume_log DROP COLUMN {name}"))
        connection.execute(version_table("rmq_").update().values(version_num="0001"))


def test_traffic_goes_on_while_a_database_is_migrated(
    shop: ReliableMQ, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given an application that sends and consumes on tables of the first release, when
    `reliable-mq migrate` runs beside it, then no transaction fails, and every order is shipped
    once."""
    with shop:
        with Orders(shop) as orders:
            orders.wait_for_more()
            make_older(shop.database)
            orders.wait_for_more()

            with pytest.raises(SystemExit, match=r"^0$"):
                run(["migrate", "--db", database_url])

            said = capsys.readouterr().out
            assert said.startswith("the database has run 0002, ")
            assert said.strip().endswith(REVISION)
            orders.wait_for_more()
        until(lambda: shipped(shop).total() >= orders.placed)
    shop.database.check_tables()

    assert shipped(shop) == Counter(map(str, range(orders.placed)))
    with shop.database.engine.connect() as connection:
        assert revision_of(connection, "rmq_") == REVISION


def shipped(shop: ReliableMQ) -> Counter[str]:
    """Return how often each order was shipped."""
    with shop.database.engine.connect() as connection:
        return Counter(connection.execute(text("SELECT id FROM shipped")).scalars())
