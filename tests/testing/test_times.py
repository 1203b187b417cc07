"""When messages with a time arrive, in worlds whose clock the test sets."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.testing.test_message_world import Shop

from reliable_mq.testing.message_world import MessageWorld


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    made = Shop(database_url)
    yield made
    made.mq.close()


def arrival(world: MessageWorld, shop: Shop, order: int, step: float, most: float) -> float:
    """Return after how many seconds an order was paid."""
    passed = 0.0
    world.deliver()
    while not shop.payments(order) and passed < most:
        world.advance(step)
        passed += step
    return passed


def test_a_delay_of_three_seconds_takes_three_seconds(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        order = shop.place(delay=timedelta(seconds=3))
        assert arrival(world, shop, order, 0.25, 9.0) == pytest.approx(3.0, abs=0.25)
