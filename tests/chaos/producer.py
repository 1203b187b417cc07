"""A process that places orders until it is told to stop: `python -m tests.chaos.producer 0 2 50`.

Receives its number, how many producers there are, and orders a second. Started again, it goes on
behind the last of its orders that is in the database.
"""

import itertools
import logging
import sys
import threading

from sqlalchemy import func, select
from tests.chaos.application import ORDERS, mq, place_order

from reliable_mq.app.thread_signals import stop_on_signal

log = logging.getLogger(__name__)

CUSTOMERS = 12
"""Customers of each producer; every fifth order is nobody's, and keeps no order."""
AGAIN_SECONDS = 0.2


def last_order(number: int, producers: int) -> int:
    """Return the greatest order number of this producer that is committed, or -1."""
    with mq.database.engine.connect() as connection:
        question = select(func.max(ORDERS.c.id)).where(ORDERS.c.id % producers == number)
        found = connection.scalar(question)
    return -1 if found is None else int(found)


def main() -> None:
    number, producers, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with stop_on_signal() as stopped:
        place_orders(stopped, number, producers, rate)
    mq.close()


def place_orders(stopped: threading.Event, number: int, producers: int, rate: float) -> None:
    """Place one order after another, a customer's in the order of their numbers.

    Every third one is a half message. One that failed goes by the outbox: the broker may be away.
    """
    order_id: int | None = None
    has_failed = False
    for turn in itertools.count():
        if stopped.wait(1 / rate):
            break
        try:
            if order_id is None:  # at the start, and when a commit's answer was lost
                last = last_order(number, producers)
                order_id = number if last < 0 else last + producers
            customer = f"{number}-{order_id // producers % CUSTOMERS}" if turn % 5 else ""
            place_order(order_id, customer, half=order_id % 3 == 0 and not has_failed)
            order_id += producers
            has_failed = False
        except Exception as error:  # noqa: BLE001 - the database is away: a till tries again
            log.warning("order %s: %s", order_id, error)
            order_id, has_failed = None, True
            stopped.wait(AGAIN_SECONDS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
