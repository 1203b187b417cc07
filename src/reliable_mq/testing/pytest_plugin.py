"""The pytest plugin: worlds for the tests of an application. Installed with reliable_mq.

def test_an_order_is_paid_once(message_world):
    world = message_world(mq)
    place_order()
    world.deliver()
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reliable_mq.app.application import ReliableMQ
    from reliable_mq.testing.message_world import MessageWorld


@pytest.fixture
def message_world() -> "Iterator[Callable[..., MessageWorld]]":
    """Give what makes a world of an application: `message_world(mq, redis=False, seed=7)`.

    The application's tables are made where they are missing; the world ends with the test.
    """
    # Imported late: a test run without a world needs none of it.
    from reliable_mq.testing.message_world import MessageWorld  # noqa: PLC0415

    with ExitStack() as worlds:

        def make(mq: "ReliableMQ", **options: Any) -> MessageWorld:
            mq.create_tables()
            return worlds.enter_context(MessageWorld(mq, **options))

        yield make
