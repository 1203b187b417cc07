"""The process that places the orders, and dies between commit and send where it is told to.

`python -m examples.demo.producer --orders 2000 --rate 40 --die-at 247 --die-at 574`

Receives the number of orders and a pace; hands on nothing but what `examples.shop` writes. Started
again, it goes on at the first order that is not in the database, as a till would.
"""

import os
import signal
import time
from itertools import islice
from typing import Annotated

import typer
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.orm import Session

from examples.demo.baskets import Basket, first_baskets
from examples.shop import NewLine, NewOrder, Order, mq, place_order

DATABASE_VARIABLE = "RELIABLE_MQ_DATABASE"


class DeathAfterCommit:
    """Kills this process when the order that was told has just been committed.

    It listens before the outbox does: the commit is done, the message is not yet handed on.
    """

    def __init__(self) -> None:
        self.is_due = False
        event.listen(Session, "after_commit", self._committed, insert=True)

    def _committed(self, _session: Session) -> None:
        if self.is_due:
            os.kill(os.getpid(), signal.SIGKILL)


class OrderPace:
    """Lets through `rate` per second, and makes no haste after a delay."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = time.monotonic()

    def wait(self) -> None:
        pause = self._next - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        self._next = max(self._next, time.monotonic() - self._step) + self._step


def order_of(basket: Basket) -> tuple[NewOrder, list[NewLine]]:
    """Return the order a basket is, and its lines."""
    order = NewOrder(
        id=basket.basket_id,
        household_id=basket.household_id,
        placed_at=basket.placed_at,
        amount=basket.amount,
    )
    return order, [
        NewLine(number=number, product_id=line.product_id, quantity=line.quantity, price=line.price)
        for number, line in enumerate(basket.lines, 1)
    ]


def orders_in_database() -> int:
    """Return how many orders were committed: they are the first ones, none was skipped."""
    engine = create_engine(os.environ[DATABASE_VARIABLE])
    with engine.connect() as connection:
        count = connection.scalar(select(func.count()).select_from(Order))
    engine.dispose()
    return count or 0


def main(
    orders: Annotated[int, typer.Option(help="Place the first so many baskets of the year.")],
    rate: Annotated[float, typer.Option(help="Orders per second at most.")],
    die_at: Annotated[list[int], typer.Option(help="Die after committing this order.")] = [],  # noqa: B006
) -> None:
    """Place orders until all are in the database."""
    death = DeathAfterCommit()
    done = orders_in_database()
    pace = OrderPace(rate)
    for number, basket in enumerate(islice(first_baskets(orders), done, None), start=done + 1):
        pace.wait()
        death.is_due = number in die_at
        place_order(*order_of(basket))
    mq.close()


if __name__ == "__main__":
    typer.run(main)
