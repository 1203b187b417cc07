"""The worker processes: `reliable-mq run shop.consumers:mq`."""

from sqlalchemy.orm import Session

from reliable_mq import Reject
from shop.events import OrderPlaced
from shop.messaging import ORDERS, mq
from shop.models import Order, Payment

__all__ = ["mq", "take_payment"]


@mq.consumer(ORDERS, group="payments")
def take_payment(placed: OrderPlaced, session: Session) -> None:
    """Take the payment of an order. The effect is committed once, whatever happens."""
    order = session.get(Order, placed.order_id)
    if order is None:
        raise Reject(f"there is no order {placed.order_id}")
    order.is_paid = True
    session.add(Payment(order_id=order.id))
