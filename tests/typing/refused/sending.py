"""Sends that a type checker refuses."""

from dataclasses import dataclass

from reliable_mq import AsyncTransaction, ReliableMQ, Transaction
from reliable_mq.testing.message_world import MessageWorld


@dataclass
class OrderPlaced:
    """A payload."""

    id: int


mq = ReliableMQ("shop")
ORDERS = mq.topic("orders", payload=OrderPlaced)
STOCK = mq.topic("stock", payload=dict[str, int])


def send(tx: Transaction, world: MessageWorld) -> None:
    """Send."""
    tx.send(ORDERS, {"id": 1})  # refused: misc reportArgumentType
    tx.send(ORDERS, 7, tag="placed")  # refused: misc reportArgumentType
    tx.send(STOCK, {"tea": "much"})  # refused: misc reportArgumentType
    tx.send_many(ORDERS, [7])  # refused: misc reportArgumentType
    tx.send("orders", 7, tga="placed")  # refused: call-arg reportCallIssue
    tx.send("orders", 7, delay=5)  # refused: arg-type reportArgumentType
    tx.send(b"orders", 7)  # refused: arg-type reportArgumentType
    mq.producer.send(ORDERS, {"id": 1})  # refused: misc reportArgumentType
    mq.producer.send("orders", 7, required_groups=())  # refused: call-arg reportCallIssue
    world.assert_sent(ORDERS, 7)  # refused: misc reportArgumentType


async def send_async(tx: AsyncTransaction) -> None:
    """Send from asyncio."""
    await tx.send(ORDERS, 7)  # refused: misc reportArgumentType
    tx.send(ORDERS, OrderPlaced(1))  # refused: unused-coroutine reportUnusedCoroutine
    await mq.producer.send_async(ORDERS, 7)  # refused: misc reportArgumentType
