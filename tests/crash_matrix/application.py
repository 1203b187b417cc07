"""The application that dies: orders, and what three consumer groups and a fourth one make of them.

Everything that it does is what a user would write. `build` makes it for one world; nothing in it
knows at which step it will be killed.
"""

import asyncio
from contextlib import suppress
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.crash_matrix.worlds import SECOND, Books, World

from reliable_mq import ReceivedMessage, ReliableMQ, Retry
from reliable_mq.errors import HalfRolledBack
from reliable_mq.outbox.sql_transaction import Transaction
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

#: the orders that are to be in the books at last, and whose they are; nobody's keep no order
WANTED = {1: "ann", 2: "ann", 3: "bob", 4: "ann", 5: ""}
LONELY = 6
"""An order whose message nobody consumes: a person must be told of it."""
GROUPS = ("payments", "points", "mails")
AFTER = "receipts"
"""What consumes the messages that `payments` sends from its handler."""
FAILS_FIRST = 3
"""The order that every group fails at when it sees it for the first time."""


def build(world: World, relay_lease: float = 0.4) -> ReliableMQ:
    """Return the application in one world; it is impatient, so that a run is short."""
    mq = ReliableMQ(
        "shop",
        broker=world.broker,
        database=world.databases[0],
        databases=dict(zip((SECOND,), world.databases[1:], strict=False)),
        redis=world.redis,
        relay_lease=relay_lease,
        resend_lease=0.6,
        resend_waits=(0.4, 0.8, 1.6),
        resend_backlog_wait=0.2,
        resend_interval=0.02,
        claim_lease=0.5,
        retry_waits=(0.05, 0.1, 0.2),
        redis_timeout=0.5,
        shutdown_timeout=5.0,
    )
    _consume_orders(mq, world)
    _consume_what_follows(mq, world)
    return mq


def _second(world: World) -> str:
    """Return the database that half of the groups have their effects in."""
    return SECOND if len(world.databases) > 1 else MAIN_DATABASE


def _consume_orders(mq: ReliableMQ, world: World) -> None:
    topic, second = world.topic("orders"), _second(world)

    @mq.consumer(topic, group=world.group("payments"), concurrency=2)
    def take_payment(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(EFFECTS), _effect("payments", order))
        with mq.transaction(session, half=world.is_half) as tx:
            tx.send(world.topic("paid"), order, key=order["id"], ordering_key=message.ordering_key)

    @mq.consumer(
        topic, group=world.group("points"), log_receipt=True, concurrency=2, database=second
    )
    async def add_points(
        order: dict[str, Any], session: AsyncSession, message: ReceivedMessage
    ) -> None:
        await session.execute(insert(EFFECTS), _effect("points", order))
        _fail_first(order, message)

    @mq.consumer(topic, group=world.group("mails"), batch=3, concurrency=2, database=second)
    def write_mail(order: dict[str, Any], session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(EFFECTS), _effect("mails", order))
        _fail_first(order, message)


def _consume_what_follows(mq: ReliableMQ, world: World) -> None:
    @mq.consumer(world.topic("paid"), group=world.group(AFTER), concurrency=2)
    async def write_receipt(order: dict[str, Any], session: AsyncSession) -> None:
        await session.execute(insert(EFFECTS), _effect(AFTER, order))


def _effect(group: str, order: dict[str, Any]) -> dict[str, Any]:
    return {"consumer_group": group, "order_id": order["id"], "customer": order["customer"]}


def _fail_first(order: dict[str, Any], message: ReceivedMessage) -> None:
    if order["id"] == FAILS_FIRST and message.reconsume_times == 0:
        raise Retry(after=0.05)


class PriceUnknown(Exception):
    """Why an order comes to nothing."""


def place_missing(mq: ReliableMQ, world: World, up_to: int = max(WANTED)) -> None:
    """Place the wanted orders that are not in the books, each in another of the forms there are."""
    with Books(world) as books:
        there = {row[0] for row in books.ask("SELECT id FROM orders")}
    for order_id, customer in WANTED.items():
        if order_id not in there and order_id <= up_to:
            form = _FORMS[order_id - 1]
            try:
                form(mq, world, {"id": order_id, "customer": customer})
            except HalfRolledBack:  # it took longer than the broker waits: again, as it says
                place_missing(mq, world, up_to)


def place_lonely(mq: ReliableMQ, world: World) -> None:
    """Place the order whose message nobody consumes."""
    order = {"id": LONELY, "customer": "eve"}
    with mq.transaction() as tx:
        tx.session.execute(insert(ORDERS), order)
        tx.send(world.topic("lonely"), order, key=LONELY, required_groups=(world.group("nobody"),))


def _write(tx: Transaction, world: World, order: dict[str, Any]) -> None:
    tx.session.execute(insert(ORDERS), order)
    tx.send(world.topic("orders"), order, key=order["id"], ordering_key=order["customer"])


def _in_one_block(mq: ReliableMQ, world: World, order: dict[str, Any]) -> None:
    with suppress(PriceUnknown), mq.transaction(half=world.is_half) as tx:
        _write(tx, world, {**order, "id": 90})
        raise PriceUnknown
    with mq.transaction(half=world.is_half) as tx:
        _write(tx, world, order)


def _after_a_savepoint_that_was_rolled_back(
    mq: ReliableMQ, world: World, order: dict[str, Any]
) -> None:
    with mq.transaction(half=world.is_half) as tx:
        savepoint = tx.session.begin_nested()
        _write(tx, world, {**order, "id": 91})
        savepoint.rollback()
        with tx.session.begin_nested():
            _write(tx, world, order)


def _on_a_loop(mq: ReliableMQ, world: World, order: dict[str, Any]) -> None:
    async def place() -> None:
        async with mq.transaction(half=world.is_half) as tx:
            await tx.session.execute(insert(ORDERS), order)
            await tx.send(
                world.topic("orders"), order, key=order["id"], ordering_key=order["customer"]
            )
        await mq.database.close_async()

    asyncio.run(place())


def _in_a_session_of_the_shops_own(mq: ReliableMQ, world: World, order: dict[str, Any]) -> None:
    with Session(mq.database.engine) as session, session.begin():
        session.execute(insert(ORDERS), order)
        with mq.transaction(session, half=world.is_half) as tx:
            tx.send(world.topic("orders"), order, key=order["id"], ordering_key=order["customer"])


def _in_the_second_database(mq: ReliableMQ, world: World, order: dict[str, Any]) -> None:
    with mq.transaction(database=_second(world), half=world.is_half) as tx:
        _write(tx, world, order)


#: how each of the wanted orders is placed
_FORMS = (
    _in_one_block,
    _after_a_savepoint_that_was_rolled_back,
    _on_a_loop,
    _in_a_session_of_the_shops_own,
    _in_the_second_database,
)
