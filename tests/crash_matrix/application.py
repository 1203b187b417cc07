"""The application that dies: orders, and what four consumer groups and a fifth one make of them.

Everything that it does is what a user would write. `build` makes it for one world; nothing in it
knows at which step it will be killed.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.crash_matrix.modes import Form
from tests.crash_matrix.worlds import SECOND, World

from reliable_mq import ReceivedMessage, Reject, ReliableMQ, Retry
from reliable_mq.settings import MAIN_DATABASE

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
)
#: effects outside of the transaction of their call: at least one, and told of a doubt from then on
LETTERS = Table(
    "letters",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("order_id", Integer, nullable=False),
    Column("is_in_doubt", Boolean, nullable=False),
)

#: the orders that are to be in the books at last, and whose they are; nobody's keep no order
WANTED = {1: "ann", 2: "ann", 3: "bob", 4: "ann", 5: "", 6: ""}
LONELY = 7
"""An order whose message nobody consumes: a person must be told of it."""
GROUPS = ("payments", "points", "mails", "parcels")
BY_MESSAGE = "parcels"
"""The group whose processes share messages, not queues; it keeps no order."""
AFTER = "receipts"
"""What consumes the messages that `payments` sends from its handler, once for each order."""
FAILS_FIRST = 3
"""The order that every group fails at when it sees it for the first time."""
PAID_TWICE = 2
"""The order for which `payments` sends two messages."""
REFUSED = 6
"""The order that `mails` refuses as long as its counter is closed."""
COUNT_MAX = 16
"""Sends of a stub after which a person is told."""
REDIS_SECONDS = 60.0
"""A busy machine is no lost Redis: without its answer the database decides alone, and forgets the
attempt of whoever died. Where a mode takes Redis away, connections are refused or closed at once.
"""


def build(world: World, relay_lease_seconds: float = 0.4) -> ReliableMQ:
    """Return the application in one world; it is impatient, so that a run is short."""
    mq = ReliableMQ(
        "shop",
        broker=world.broker,
        database=world.databases[0],
        databases=dict(zip((SECOND,), world.databases[1:], strict=False)),
        redis=world.redis,
        relay="shared" if world.mode.form is Form.SHARED else "own",
        relay_lease_seconds=relay_lease_seconds,
        resend_lease_seconds=0.6,
        resend_waits_seconds=(0.4, 0.8, 1.6),
        resend_count_max=3 if world.flaw else COUNT_MAX,  # what is lost is not sent for long
        resend_backlog_wait_seconds=0.2,
        resend_interval_seconds=0.1,
        claim_lease_seconds=0.5,
        retry_waits_seconds=(0.05, 0.1, 0.2),
        redis_timeout_seconds=REDIS_SECONDS,
        shutdown_timeout_seconds=5.0,
    )
    _consume_orders(mq, world)
    _consume_what_follows(mq, world)
    return mq


def second(world: World) -> str:
    """Return the database that half of the groups have their effects in."""
    return SECOND if len(world.databases) > 1 else MAIN_DATABASE


def closed(world: World) -> Path:
    """Return the file that is there as long as the counter of `mails` is closed."""
    return Path(world.directory, "closed")


def _consume_orders(mq: ReliableMQ, world: World) -> None:
    topic = world.topic("orders")

    @mq.consumer(topic, group=world.group("payments"), concurrency=2)
    def take_payment(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(EFFECTS), _effect("payments", order))
        with mq.transaction(session, half=world.is_half) as tx:
            for _ in range(2 if order["id"] == PAID_TWICE else 1):
                tx.send(
                    world.topic("paid"), order, key=order["id"], ordering_key=message.ordering_key
                )

    @mq.consumer(
        topic, group=world.group("points"), log_receipt=True, concurrency=2, database=second(world)
    )
    async def add_points(
        order: dict[str, Any], session: AsyncSession, message: ReceivedMessage
    ) -> None:
        await session.execute(insert(EFFECTS), _effect("points", order))
        _fail_first(order, message)

    @mq.consumer(topic, group=world.group(BY_MESSAGE), by="message", ordered=False, concurrency=2)
    def pack_parcel(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(EFFECTS), _effect(BY_MESSAGE, order))
        _fail_first(order, message)

    @mq.consumer(topic, group=world.group("mails"), batch=3, concurrency=2, database=second(world))
    def write_mail(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
        if order["id"] == REFUSED and closed(world).exists():
            raise Reject("the counter is closed")
        session.execute(insert(EFFECTS), _effect("mails", order))
        _fail_first(order, message)


def _consume_what_follows(mq: ReliableMQ, world: World) -> None:
    @mq.consumer(world.topic("paid"), group=world.group(AFTER), concurrency=2, idempotent_by="id")
    async def write_receipt(order: dict[str, Any], session: AsyncSession) -> None:
        await session.execute(insert(EFFECTS), _effect(AFTER, order))


def _effect(group: str, order: dict[str, Any]) -> dict[str, Any]:
    return {"consumer_group": group, "order_id": order["id"], "customer": order["customer"]}


def _fail_first(order: dict[str, Any], message: ReceivedMessage) -> None:
    if order["id"] == FAILS_FIRST and message.reconsume_times == 0:
        raise Retry(after=0.05)
