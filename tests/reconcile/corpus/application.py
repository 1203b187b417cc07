"""The shop whose ledgers are reconciled: orders that groups must hear of.

An order says itself what is to go wrong with it, so that every process that consumes it agrees, and
a test knows what the ledgers must hold. As a worker, `RELIABLE_MQ_BROKER`, `RELIABLE_MQ_DATABASE`
and `RELIABLE_MQ_REDIS` say where everything is: `reliable-mq run
tests.reconcile.corpus.application:mq`. As a producer, it places one transaction of orders: `python
-m tests.reconcile.corpus.application NUMBER…`.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.orm import Session

from reliable_mq import ReceivedMessage, Reject, ReliableMQ, Retry

NAME, TOPIC = "corpus", "orders"
PAYMENTS, LOYALTY, GIFTS = "payments", "loyalty", "gifts"
GIFT_TAG = "gift"
REJECTED, FAILS_ONCE, HANGS = "rejected", "fails once", "hangs"
"""What can happen to an order where it is consumed."""

LEASE_SECONDS = 1.0
RELAY_LEASE_SECONDS = 3600.0
"""No scheduler runs that would take over what the relay has not sent in time."""

TABLES = MetaData()
EFFECTS = Table(
    "effects",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("consumer_group", String(40), nullable=False),
    Column("order_id", Integer, nullable=False),
)
_never = threading.Event()


@dataclass
class Order:
    """What is sent: by group, what happens there to the order; nothing, if nothing is said."""

    id: int
    payments: str = ""
    loyalty: str = ""
    note: str = ""


def _happen(what: str, message: ReceivedMessage) -> None:
    if what == REJECTED:
        raise Reject("no such card")
    if what == FAILS_ONCE and message.reconsume_times == 0:
        raise Retry(after=0.1)
    if what == HANGS:
        _never.wait()


def pay(order: Order, session: Session, message: ReceivedMessage) -> None:
    """Many in one transaction."""
    session.execute(insert(EFFECTS), {"consumer_group": PAYMENTS, "order_id": order.id})
    _happen(order.payments, message)


def shop(
    *, broker: str | None = None, database: str | None = None, redis: str | None = None
) -> ReliableMQ:
    """Return the application: two groups that hear of every order, one that hears of gifts."""
    mq = ReliableMQ(
        NAME,
        broker=broker,
        database=database,
        redis=redis,
        relay_lease_seconds=RELAY_LEASE_SECONDS,
        claim_lease_seconds=LEASE_SECONDS,
        retry_waits_seconds=(0.1,),
        retention="off",
    )

    mq.consumer(TOPIC, group=PAYMENTS, batch=64)(pay)

    @mq.consumer(TOPIC, group=LOYALTY, log_receipt=True)
    def add_points(order: Order, session: Session, message: ReceivedMessage) -> None:
        """Receipt first, as for effects outside the database."""
        session.execute(insert(EFFECTS), {"consumer_group": LOYALTY, "order_id": order.id})
        _happen(order.loyalty, message)

    @mq.consumer(TOPIC, group=GIFTS, tag=GIFT_TAG)
    def wrap(order: Order, session: Session) -> None:
        session.execute(insert(EFFECTS), {"consumer_group": GIFTS, "order_id": order.id})

    return mq


def bank() -> ReliableMQ:
    """Return the application of payments alone, whose effects lie in a database of its own."""
    mq = ReliableMQ(f"{NAME}-bank", claim_lease_seconds=LEASE_SECONDS, retention="off")
    mq.consumer(TOPIC, group=PAYMENTS, batch=64)(pay)
    return mq


mq = shop()
payments = bank()


def place(numbers: Sequence[int]) -> None:
    """Place orders in one transaction, and let the relay send them."""
    with mq.transaction() as tx:
        tx.send_many(TOPIC, [Order(each) for each in numbers], key=lambda one: one.id)
    mq.close()


if __name__ == "__main__":
    place([int(each) for each in sys.argv[1:]])
