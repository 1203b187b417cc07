"""The shop: an order is placed in one transaction, and two groups learn of it by message.

`RELIABLE_MQ_BROKER`, `RELIABLE_MQ_DATABASE` and `RELIABLE_MQ_REDIS` say where broker, database and
Redis are. The consumers below run with `reliable-mq run examples.shop:mq`.
"""

from decimal import Decimal

from pydantic import BaseModel
from sqlalchemy.orm import Session

from examples.shop.models import LoyaltyAccount, Order, Payment
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")


class OrderPlaced(BaseModel):
    """What other parts of the shop need to know of a new order."""

    order_id: int
    household_id: int
    amount: Decimal


def place_order(order: Order) -> None:
    """Write the order and announce it: both, or neither.

    Orders of one household keep their sequence, those of different households do not wait for
    each other.
    """
    with mq.transaction() as tx:
        tx.session.add(order)
        tx.send(
            "orders",
            OrderPlaced(order_id=order.id, household_id=order.household_id, amount=order.amount),
            tag="placed",
            key=str(order.id),
            ordering_key=str(order.household_id),
        )


@mq.consumer("orders", group="payments", tag="placed", batch=16)
def take_payment(placed: OrderPlaced, session: Session) -> None:
    """Write one payment. It commits together with the note that this message is done."""
    session.add(Payment(order_id=placed.order_id, amount=placed.amount))


@mq.consumer("orders", group="loyalty", tag="placed", batch=16)
def add_points(placed: OrderPlaced, session: Session) -> None:
    """Give one point for each whole unit of money spent."""
    account = session.get(LoyaltyAccount, placed.household_id, with_for_update=True)
    if account is None:
        account = LoyaltyAccount(household_id=placed.household_id, points=0)
        session.add(account)
    account.points += int(placed.amount)
