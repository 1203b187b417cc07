"""The shop over Django."""

from reliable_mq import ReceivedMessage
from reliable_mq.contrib.django import mq
from shop.models import OrderPlaced

ORDERS = mq.topic("orders", payload=OrderPlaced)


@mq.consumer(ORDERS, group="payments", database="billing")
def take_payment(placed: OrderPlaced, message: ReceivedMessage) -> None:
    """A handler that uses the ORM."""
    print(placed.id, message.message_id)


def place() -> str:
    """Send in the open block, in a block of its own, and to another database."""
    mq.send_many(ORDERS, [OrderPlaced(id=1, amount=7)], key=lambda placed: placed.id)
    with mq.transaction() as tx:
        tx.send("notes", {"id": 1}, tag="placed")
    return mq.send(ORDERS, OrderPlaced(id=1, amount=7), using="default", key="4711")
