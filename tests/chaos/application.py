"""The shop under chaos: orders, five groups that must hear of each, and what follows from them.

`RELIABLE_MQ_BROKER`, `RELIABLE_MQ_DATABASE` and `RELIABLE_MQ_REDIS` say where everything is. With
`RELIABLE_MQ_DATABASES` naming a database `branch`, three of the groups have their effects in it.
"""

import os
import random
import time
from typing import Any

from sqlalchemy import Column, Index, Integer, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq import ReceivedMessage, ReliableMQ, Retry

TABLES = MetaData()
ORDERS = Table(
    "orders",
    TABLES,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("customer", String(20), nullable=False),
)
# Nothing is unique but the row's own number: a message that was handled twice shows.
EFFECTS = Table(
    "effects",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("consumer_group", String(40), nullable=False),
    Column("order_id", Integer, nullable=False),
    Column("customer", String(20), nullable=False),
    Column("previous", Integer),
)
Index("effects_order", EFFECTS.c.consumer_group, EFFECTS.c.order_id)
Index("effects_customer", EFFECTS.c.consumer_group, EFFECTS.c.customer, EFFECTS.c.id)

CARRIED = "balances"
"""Each of its effects reads what the one before it wrote."""
BY_MESSAGE = "parcels"
"""The group whose processes share messages, not queues: it keeps no order."""
GROUPS = ("payments", "points", "mails", CARRIED, BY_MESSAGE)
AFTER = "receipts"
"""What consumes the messages that `payments` sends from its handler."""
ONCE = "greetings"
"""What consumes two messages with one business key, and has one effect of them."""
ANNOUNCED_EVERY = 5
BRANCH = "branch" if "RELIABLE_MQ_DATABASES" in os.environ else "main"
"""The database of the groups `payments`, `points` and `balances`."""
FAILURES = 0.01
"""The share of attempts that fail by themselves."""
SLOW, SLOW_SECONDS = 0.01, 3.0
"""The share of parcels that take longer than a lease, and how long."""

mq = ReliableMQ(
    "chaos",
    relay_lease_seconds=2.0,
    resend_lease_seconds=10.0,
    resend_waits_seconds=(2.0, 4.0, 8.0, 15.0),
    resend_backlog_wait_seconds=1.0,
    resend_interval_seconds=0.2,
    resend_count_max=1000,
    claim_lease_seconds=2.0,
    retry_waits_seconds=(0.2, 0.5, 1.0),
)


def place_order(order_id: int, customer: str, *, half: bool) -> None:
    """Write an order and send it, by a half message if asked for; announce every fifth twice."""
    order = {"id": order_id, "customer": customer}
    with mq.transaction(half=half) as tx:
        tx.session.execute(insert(ORDERS), order)
        tx.send("orders", order, key=order_id, ordering_key=customer)
        if order_id % ANNOUNCED_EVERY == 0:
            tx.send_many("announced", [order, order], key=order_id)


def _may_fail() -> None:
    if random.random() < FAILURES:
        raise Retry(after=0.1)


def _effect(group: str, order: dict[str, Any]) -> dict[str, Any]:
    return {"consumer_group": group, "order_id": order["id"], "customer": order["customer"]}


@mq.consumer("orders", group="payments", max_attempts=1000, database=BRANCH)
def take_payment(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
    """One commit: the effect, and the message that follows from it."""
    session.execute(insert(EFFECTS), _effect("payments", order))
    with mq.transaction(session) as tx:
        tx.send("paid", order, key=order["id"], ordering_key=message.ordering_key)
    _may_fail()


@mq.consumer("orders", group="points", log_receipt=True, max_attempts=1000, database=BRANCH)
async def add_points(order: dict[str, Any], session: AsyncSession) -> None:
    """Receipt first, as for effects outside the database."""
    await session.execute(insert(EFFECTS), _effect("points", order))
    _may_fail()


@mq.consumer("orders", group="mails", batch=16, max_attempts=1000)
def write_mail(order: dict[str, Any], session: Session) -> None:
    """Many in one transaction."""
    session.execute(insert(EFFECTS), _effect("mails", order))
    _may_fail()


@mq.consumer("orders", group=BY_MESSAGE, by="message", ordered=False, max_attempts=1000)
def pack_parcel(order: dict[str, Any], session: Session) -> None:
    """By the message: popped, acknowledged one by one, extended while it takes long."""
    session.execute(insert(EFFECTS), _effect(BY_MESSAGE, order))
    if random.random() < SLOW:
        time.sleep(SLOW_SECONDS)
    _may_fail()


@mq.consumer("paid", group=AFTER, batch=16, max_attempts=1000)
async def write_receipt(order: dict[str, Any], session: AsyncSession) -> None:
    """What follows."""
    await session.execute(insert(EFFECTS), _effect(AFTER, order))


@mq.consumer("orders", group=CARRIED, max_attempts=1000, database=BRANCH)
def carry_forward(order: dict[str, Any], session: Session) -> None:
    """Depends on the order of the key, and locks nothing."""
    effect = _effect(CARRIED, order)
    newest = (
        select(EFFECTS.c.order_id)
        .where(EFFECTS.c.consumer_group == CARRIED, EFFECTS.c.customer == order["customer"])
        .order_by(EFFECTS.c.id.desc())
        .limit(1)
    )
    session.execute(insert(EFFECTS), effect | {"previous": session.scalar(newest)})
    _may_fail()


@mq.consumer("announced", group=ONCE, idempotent_by="id", max_attempts=1000)
def greet(order: dict[str, Any], session: Session) -> None:
    """One effect of two messages."""
    session.execute(insert(EFFECTS), _effect(ONCE, order))
    _may_fail()
