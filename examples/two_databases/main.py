"""Orders in one database, the ledger in another: each commit is of one, and they agree.

The order is committed with its message in shop.db. The ledger's entry is committed with the note
that the message was consumed, in ledger.db, which then tells shop.db.
"""

import time

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ

mq = ReliableMQ(
    "shop",
    broker="embedded:broker",
    database="sqlite:///shop.db",
    databases={"ledger": "sqlite:///ledger.db"},
)


@mq.consumer("orders", group="bookkeeping", database="ledger")
def enter(order: dict[str, int], session: Session) -> None:
    """Enter an order into the ledger."""
    session.execute(text("INSERT INTO entries VALUES (:id, :amount)"), order)


def count(engine: Engine, table: str) -> int:
    """Return how many rows a table has."""
    with engine.begin() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def unconfirmed() -> int:
    """Return how many stubs wait for the ledger."""
    status = mq.database.stubs.c.status
    with mq.database.engine.begin() as connection:
        return len(connection.execute(select(status).where(status == 0)).all())


shop, ledger = mq.database.engine, mq.databases["ledger"].engine
mq.create_tables()
for engine, table in ((shop, "orders"), (ledger, "entries")):
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id INTEGER, amount INTEGER)"))

with mq:
    for number in range(5):
        order = {"id": number, "amount": 10 * number}
        with mq.transaction() as tx:
            tx.session.execute(text("INSERT INTO orders VALUES (:id, :amount)"), order)
            tx.send("orders", order)
    deadline = time.monotonic() + 60
    while unconfirmed() and time.monotonic() < deadline:
        time.sleep(0.05)
    print(count(shop, "orders"), "orders in the shop")
    print(count(ledger, "entries"), "entries in the ledger")
    print(unconfirmed(), "messages not confirmed")
