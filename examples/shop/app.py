"""The shop: an order is placed in one transaction, and two groups learn of it by message.

`RELIABLE_MQ_BROKER`, `RELIABLE_MQ_DATABASE` and `RELIABLE_MQ_REDIS` say where broker, database and
Redis are. The consumers below run with `reliable-mq run examples.shop:mq`.
"""

from collections.abc import Sequence
from decimal import Decimal

from pydantic import BaseModel
from sqlalchemy.orm import Session

from examples.shop.models import (
    ADD_POINTS,
    INSERT_LINES,
    INSERT_ORDER,
    LoyaltyAccount,
    NewLine,
    NewOrder,
    Payment,
)
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")


class OrderPlaced(BaseModel):
    """What other parts of the shop need to know of a new order."""

    order_id: int
    household_id: int
    amount: Decimal


def write_order(session: Session, order: NewOrder, lines: Sequence[NewLine]) -> None:
    """Write an order and its lines, as any shop does."""
    session.execute(INSERT_ORDER, dict(order))
    session.execute(INSERT_LINES, [{"order_id": order["id"], **line} for line in lines])


def place_order(order: NewOrder, lines: Sequence[NewLine]) -> None:
    """Write the order and announce it: both, or neither.

    Orders of one household keep their sequence, those of different households do not wait for
    each other.
    """
    order_id, household_id = order["id"], order["household_id"]
    with mq.transaction() as tx:
        write_order(tx.session, order, lines)
        tx.send(
            "orders",
            OrderPlaced(order_id=order_id, household_id=household_id, amount=order["amount"]),
            tag="placed",
            key=order_id,
            ordering_key=household_id,
        )


@mq.consumer("orders", group="payments", tag="placed", batch=64, concurrency=1)
def take_payment(placed: OrderPlaced, session: Session) -> None:
    """Write one payment. It commits together with the note that this message is done."""
    session.add(Payment(order_id=placed.order_id, amount=placed.amount))


@mq.consumer("orders", group="loyalty", tag="placed", batch=64, concurrency=1)
def add_points(placed: OrderPlaced, session: Session) -> None:
    """Give one point for each whole unit of money spent."""
    more = {"household": placed.household_id, "more": int(placed.amount)}
    if session.execute(ADD_POINTS, more).first() is None:
        session.add(LoyaltyAccount(household_id=placed.household_id, points=int(placed.amount)))
