"""The tests of the shop: no broker, no Redis, no sleeping."""

# --8<-- [start:imports]
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from reliable_mq.testing.message_world import MessageWorld
from shop.consumers import mq
from shop.models import Order, Payment, Table
from shop.orders import place_order
from shop.web import app

# --8<-- [end:imports]


# --8<-- [start:fixture]
@pytest.fixture
def world(message_world: Callable[..., MessageWorld]) -> MessageWorld:
    """Give the shop with empty tables and a broker in memory."""
    Table.metadata.drop_all(mq.database.engine)
    Table.metadata.create_all(mq.database.engine)
    return message_world(mq)


def place(item: str) -> int:
    """Place an order as the web does, in a transaction of its own; return its number."""
    with mq.transaction() as tx:
        return place_order(tx, item)


def payments_of(number: int) -> int:
    """Return how many payments an order has."""
    with Session(mq.database.engine) as session:
        found = session.scalar(select(func.count()).where(Payment.order_id == number))
    return found or 0


# --8<-- [end:fixture]


# --8<-- [start:once]
def test_an_order_is_paid_once(world: MessageWorld) -> None:
    number = place("tea")
    world.assert_sent("orders", {"order_id": number, "item": "tea"})

    world.deliver()

    assert payments_of(number) == 1


# --8<-- [end:once]


# --8<-- [start:faults]
def test_an_order_is_paid_once_whatever_fails_and_whoever_dies(world: MessageWorld) -> None:
    world.assert_effect_once(lambda: place("tea"), payments_of)


# --8<-- [end:faults]


# --8<-- [start:web]
def test_a_customer_sees_that_an_order_is_paid(world: MessageWorld) -> None:
    client = TestClient(app)
    number = client.post("/orders", json={"item": "tea"}).json()["id"]
    assert client.get(f"/orders/{number}").json()["is_paid"] is False

    world.deliver()

    assert client.get(f"/orders/{number}").json()["is_paid"] is True


# --8<-- [end:web]


def test_a_message_about_no_order_becomes_a_dead_letter(world: MessageWorld) -> None:
    number = place("tea")
    with Session(mq.database.engine) as session, session.begin():
        session.delete(session.get_one(Order, number))

    world.deliver()

    (letter,) = world.dead_letters("payments")
    assert letter.topic
