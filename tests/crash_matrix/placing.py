"""How the orders are placed: each in another of the forms that there are for a transaction.

Receives an application and its world; hands on committed orders with their messages. Whoever was
killed while it placed them calls `place_missing` again, as a user would.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import insert
from sqlalchemy.orm import Session
from tests.crash_matrix.application import LETTERS, LONELY, ORDERS, WANTED, second
from tests.crash_matrix.worlds import Books, World
from tests.waiting import until

from reliable_mq import IdempotentCall, ReliableMQ, injected
from reliable_mq.errors import CallRunning, HalfRolledBack
from reliable_mq.outbox.sql_transaction import Transaction

T = TypeVar("T")
Order = dict[str, Any]


class PriceUnknown(Exception):
    """Why an order comes to nothing."""


def place_missing(mq: ReliableMQ, world: World, only: Collection[int] = tuple(WANTED)) -> None:
    """Place those wanted orders that are not in the books."""
    with Books(world) as books:
        there = {row[0] for row in books.ask("SELECT id FROM orders")}
    for order_id in WANTED:
        if order_id in only and order_id not in there:
            try:
                _FORMS[order_id](mq, world, order_of(order_id))
            except HalfRolledBack:  # it took longer than the broker waits: again, as it says
                place_missing(mq, world, only)


def order_of(order_id: int) -> Order:
    """Return one of the wanted orders."""
    return {"id": order_id, "customer": WANTED[order_id]}


def place_lonely(mq: ReliableMQ, world: World) -> None:
    """Place the order whose message nobody consumes."""
    order = {"id": LONELY, "customer": "eve"}
    with mq.transaction() as tx:
        tx.session.execute(insert(ORDERS), order)
        tx.send(world.topic("lonely"), order, key=LONELY, required_groups=(world.group("nobody"),))


def write(tx: Transaction, world: World, order: Order) -> None:
    """Write an order and its message."""
    tx.session.execute(insert(ORDERS), order)
    tx.send(world.topic("orders"), order, key=order["id"], ordering_key=order["customer"])


def _in_one_block(mq: ReliableMQ, world: World, order: Order) -> None:
    with suppress(PriceUnknown), mq.transaction(half=world.is_half) as tx:
        write(tx, world, {**order, "id": 90})
        raise PriceUnknown
    with mq.transaction(half=world.is_half) as tx:
        write(tx, world, order)


def _after_a_savepoint_that_was_rolled_back(mq: ReliableMQ, world: World, order: Order) -> None:
    with mq.transaction(half=world.is_half) as tx:
        savepoint = tx.session.begin_nested()
        write(tx, world, {**order, "id": 91})
        savepoint.rollback()
        with tx.session.begin_nested():
            write(tx, world, order)


def _on_a_loop(mq: ReliableMQ, world: World, order: Order) -> None:
    async def place() -> None:
        async with mq.transaction(half=world.is_half) as tx:
            await tx.session.execute(insert(ORDERS), order)
            await tx.send(
                world.topic("orders"), order, key=order["id"], ordering_key=order["customer"]
            )
        await mq.database.close_async()

    asyncio.run(place())


def _in_a_session_of_the_shops_own(mq: ReliableMQ, world: World, order: Order) -> None:
    with Session(mq.database.engine) as session, session.begin():
        session.execute(insert(ORDERS), order)
        with mq.transaction(session, half=world.is_half) as tx:
            tx.send(world.topic("orders"), order, key=order["id"], ordering_key=order["customer"])


def _in_the_second_database(mq: ReliableMQ, world: World, order: Order) -> None:
    with mq.transaction(database=second(world), half=world.is_half) as tx:
        write(tx, world, order)


def by_an_idempotent_call(mq: ReliableMQ, world: World, order: Order) -> None:
    """Place an order, unless this was done; post a letter of it, unless this is known to be done.

    Whoever does not know whether it was done calls again: that is what it is for.
    """

    @mq.idempotent(key="request", scope="accept")
    def accept(request: int, session: Session = injected) -> int:
        session.execute(insert(ORDERS), order)
        with mq.transaction(session, half=world.is_half) as tx:
            tx.send(world.topic("orders"), order, key=request, ordering_key=order["customer"])
        return request

    assert _called(accept, order["id"]) == order["id"]
    post_letter(mq, order["id"])


def post_letter(mq: ReliableMQ, order_id: int) -> None:
    """Have an effect outside of the call's transaction, once if nothing dies meanwhile."""

    @mq.idempotent(key="request", scope="post")
    def post(request: int, call: IdempotentCall = injected) -> None:
        letter = {"order_id": request, "is_in_doubt": call.in_doubt}
        with mq.database.engine.begin() as connection:
            connection.execute(insert(LETTERS), letter)

    _called(post, order_id)


def _called(function: Callable[[int], T], request: int) -> T:
    """Call an idempotent function, and wait for the lease of one that died in it."""
    answers: list[T] = []

    def is_answered() -> bool:
        with suppress(CallRunning):
            answers.append(function(request))
        return bool(answers)

    until(is_answered)
    return answers[0]


BY_CALL = 6
_FORMS: Mapping[int, Callable[[ReliableMQ, World, Order], None]] = {
    1: _in_one_block,
    2: _after_a_savepoint_that_was_rolled_back,
    3: _on_a_loop,
    4: _in_a_session_of_the_shops_own,
    5: _in_the_second_database,
    BY_CALL: by_an_idempotent_call,
}
"""How each of the wanted orders is placed."""
