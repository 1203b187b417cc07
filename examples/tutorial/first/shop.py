"""A shop with two tables: it places orders, and a worker takes their payments."""

import os
import signal
import sys
import time
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db")


class Table(DeclarativeBase):
    """What the tables have in common."""


class Order(Table):
    """An order of a customer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Payment(Table):
    """A payment. One order could have two: then a message would have been handled twice."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


def place_order(item: str) -> int:
    """Write an order and its message: both are committed, or neither."""
    with mq.transaction() as tx:
        order = Order(item=item)
        tx.session.add(order)
        tx.session.flush()  # the database gives the order its number
        number = order.id
        tx.send("orders", {"id": number, "item": item}, key=number)
    return number


@mq.consumer("orders", group="payments")
def take_payment(order: dict[str, Any], session: Session) -> None:
    """Take the payment of an order."""
    print("taking the payment of order", order["id"], "in process", os.getpid(), flush=True)
    time.sleep(3)  # the bank is slow
    session.add(Payment(order_id=order["id"]))
    print("order", order["id"], "is paid", flush=True)


def print_payments() -> None:
    """Print how many payments each order has."""
    paid = (
        select(Order.id, func.count(Payment.id))
        .outerjoin(Payment, Payment.order_id == Order.id)
        .group_by(Order.id)
    )
    with mq.database.engine.connect() as connection:
        for order, count in connection.execute(paid):
            print("order", order, "payments", count)


if __name__ == "__main__":
    mq.create_tables()
    Table.metadata.create_all(mq.database.engine)
    if sys.argv[1] == "payments":
        print_payments()
    else:
        print("placed order", place_order(sys.argv[1]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the worst end that a process can have
