"""A topic that knows the type of its payloads stands wherever a topic's name may stand."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from reliable_mq import Decision, Message, ReceivedMessage, ReliableMQ, Topic
from reliable_mq.errors import ConfigurationError
from reliable_mq.testing.message_world import MessageWorld


class Placed(BaseModel):
    """An order."""

    id: int


class Shop(ReliableMQ):
    """An application whose only topic has a type."""

    def __init__(self, url: str) -> None:
        super().__init__("shop", database=url)
        self.orders: Topic[Placed] = self.topic("orders", payload=Placed)
        self.paid: list[int] = []
        self.consumer(self.orders, group="payments")(self.pay)
        self.create_tables()

    def pay(self, placed: Placed) -> None:
        self.paid.append(placed.id)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.close()


def test_all_ways_of_sending_take_a_topic(shop: Shop) -> None:
    async def send_async() -> None:
        async with shop.transaction() as tx:
            await tx.send(shop.orders, Placed(id=4))
            await tx.send_many(shop.orders, [Placed(id=5)])
        await shop.database.close_async()

    with MessageWorld(shop) as world:
        with shop.transaction() as tx:
            tx.send(shop.orders, Placed(id=1))
            tx.send_many(shop.orders, [Placed(id=2)], key=lambda placed: placed.id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is a managed topic
            shop.producer.send(shop.orders, Placed(id=3))
        asyncio.run(send_async())
        world.deliver()

        assert sorted(shop.paid) == [1, 2, 3, 4, 5]
        assert {message.topic for message in world.sent(shop.orders)} == {"orders"}
        assert len(world.assert_sent(shop.orders, Placed(id=2), key=2)) == 1


def test_a_transaction_listener_takes_a_topic(shop: Shop) -> None:
    with MessageWorld(shop) as world:

        @shop.transaction_listener(shop.orders)
        class Listener:
            def execute(self, message: Message, argument: object) -> Decision:
                return Decision.COMMIT

            def check(self, message: ReceivedMessage) -> Decision:
                return Decision.UNKNOWN

        shop.producer.send_in_transaction(shop.orders, Placed(id=1))
        world.deliver()

        assert shop.paid == [1]


def test_faults_of_a_world_take_a_topic(shop: Shop) -> None:
    with MessageWorld(shop) as world:
        world.faults.delay(60.0, shop.orders)
        with shop.transaction() as tx:
            message_id = tx.send(shop.orders, Placed(id=1))
        world.deliver()
        assert shop.paid == []
        world.advance(60)

        assert shop.paid == [1]
        assert world.sent_times(message_id, shop.orders) == 1


def test_a_pause_takes_a_topic(shop: Shop) -> None:
    shop.resending.pause(shop.orders)
    assert list(shop.resending.topics()["main"]) == ["orders"]
    shop.resending.resume(shop.orders)
    assert shop.resending.topics() == {"main": {}}


def test_a_topic_with_a_name_that_is_not_legal_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        shop.topic("no topic!", payload=Placed)
