"""What the shop does with orders. It is called by the web and by tests."""

from shop.events import OrderPlaced
from shop.messaging import ORDERS, mq
from shop.models import Order


def place_order(item: str) -> int:
    """Write an order and announce it, in one transaction; return its number."""
    with mq.transaction() as tx:
        order = Order(item=item)
        tx.session.add(order)
        tx.session.flush()
        number = order.id
        tx.send(ORDERS, OrderPlaced(order_id=number, item=item), key=number)
    return number
