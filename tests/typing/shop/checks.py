"""The tests of the shop."""

from collections.abc import Callable

from reliable_mq.testing.crash_points import crash_here
from reliable_mq.testing.message_world import MessageWorld
from shop.app import ORDERS, mq, place
from shop.models import OrderPlaced


def test_an_order_is_paid_once(message_world: Callable[..., MessageWorld]) -> None:
    """Use the fixture."""
    world = message_world(mq)
    place(1)
    world.assert_sent(ORDERS, OrderPlaced(id=1, amount=7), tag="placed", times=1)
    world.faults.duplicate(ORDERS, times=2)
    world.faults.delay(5.0, "orders")
    with world.crash("charged") as switch:
        world.deliver()
    print(switch.names, [message.body for message in world.sent(ORDERS)])
    world.advance(hours=2)
    world.settle()
    print(world.dead_letters("payments"))
    crash_here("charged")
