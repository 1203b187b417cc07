"""The application of `bench.order_flow`: an order is a row and a message, its effect another row.

`reliable-mq run bench.order_flow_app:mq` runs its consumers, where `FLOW` names which: `one` for a
transaction for each message, `batch` for one for up to 64. `python -m bench.order_flow_app EFFECTS
THREADS` writes as many effects without any messaging, on the word `go` from its standard input.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

from pydantic import BaseModel
from sqlalchemy import BigInteger, Column, MetaData, Numeric, Table, insert
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ

mq = ReliableMQ("flow")
metadata = MetaData()
orders = Table(
    "flow_order",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("customer", BigInteger, nullable=False),
    Column("amount", Numeric(10, 2), nullable=False),
)
effects = Table(
    "flow_effect",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("order_id", BigInteger, nullable=False),
    Column("amount", Numeric(10, 2), nullable=False),
)
INSERT_ORDER, INSERT_EFFECT = insert(orders), insert(effects)
AMOUNT = Decimal("12.50")


class Placed(BaseModel):
    """What the consumer needs to know of an order."""

    order_id: int
    amount: Decimal


def topic_of(flow: str) -> str:
    """Return the topic of the orders of one flow."""
    return f"flow-{flow}"


def write_order(session: Session, number: int) -> None:
    """The business of the producer."""
    session.execute(INSERT_ORDER, {"id": number, "customer": number % 97, "amount": AMOUNT})


def place(flow: str, number: int) -> None:
    """Write an order, and announce it where there is messaging."""
    if flow == "plain":
        with mq.database.session() as session, session.begin():
            write_order(session, number)
        return
    with mq.transaction() as tx:
        write_order(tx.session, number)
        tx.send(topic_of(flow), Placed(order_id=number, amount=AMOUNT), key=number)


def write_effect(placed: Placed, session: Session) -> None:
    """The business of the consumer."""
    session.execute(INSERT_EFFECT, {"order_id": placed.order_id, "amount": placed.amount})


mq.topic(topic_of("one"), groups=["one"])
mq.topic(topic_of("batch"), groups=["batch"])
if os.environ.get("FLOW") == "one":
    mq.consumer(topic_of("one"), group="one")(write_effect)
if os.environ.get("FLOW") == "batch":
    mq.consumer(topic_of("batch"), group="batch", batch=64, concurrency=2)(write_effect)


def write_plain_effect(number: int) -> None:
    """The consumer's transaction without a message."""
    with mq.database.session() as session, session.begin():
        write_effect(Placed(order_id=number, amount=AMOUNT), session)


if __name__ == "__main__":
    count, threads = int(sys.argv[1]), int(sys.argv[2])
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write_plain_effect, range(threads)))  # connections are made
        print("ready", flush=True)
        sys.stdin.readline()
        list(pool.map(write_plain_effect, range(count - threads)))
    print("done", flush=True)
    sys.stdin.read()  # until the time that was used has been read
