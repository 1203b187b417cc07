"""What the shop does with orders. It is called by the web and by tests."""

from reliable_mq import Transaction
from shop.events import OrderPlaced
from shop.messaging import ORDERS
from shop.models import Order


def place_order(tx: Transaction, item: str) -> int:
    """Write an order and announce it, in one transaction; return its number."""
    order = Order(item=item)
    tx.session.add(order)
    tx.session.flush()  # the database gives the order its number
    tx.send(ORDERS, OrderPlaced(order_id=order.id, item=item), key=order.id)
    return order.id
