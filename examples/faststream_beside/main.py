"""FastStream beside it: baskets come by FastStream, orders leave by the outbox.

FastStream's messages over Redis may come twice, or get lost with their process. So the order, its
message and the basket's number are one commit: the same basket again has no effect.
"""

import asyncio
import logging
from pathlib import Path
from tempfile import mkdtemp

from faststream.redis import RedisBroker
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ, injected
from reliable_mq.testing.local_servers import LocalValkey

valkey = LocalValkey(Path(mkdtemp(dir="/tmp")))
stream = RedisBroker(valkey.start(), logger=logging.getLogger("baskets"))
mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
came: list[int] = []
paid: list[str] = []


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Basket(BaseModel):
    """What FastStream brings."""

    number: int
    item: str


@mq.idempotent(key="basket.number", scope="baskets")
async def place(basket: Basket, session: AsyncSession = injected) -> int:
    """Write an order and announce it, once for each basket."""
    order = Order(item=basket.item)
    session.add(order)
    await session.flush()
    async with mq.transaction(session) as tx:
        await tx.send("orders", {"id": order.id})
    return order.id


@stream.subscriber(list="baskets")
async def receive(basket: Basket) -> None:
    """Place the order of a basket."""
    order = await place(basket)
    print("basket", basket.number, "is order", order)
    came.append(basket.number)


@mq.consumer("orders", group="payments")
def take_payment(placed: dict[str, int], session: Session) -> None:
    """Take the payment; it commits together with the note that this message is done."""
    paid.append(session.get_one(Order, placed["id"]).item)


async def main() -> None:
    """Publish baskets, one of them twice."""
    async with stream:
        await stream.start()
        for number, item in ((1, "tea"), (1, "tea"), (2, "rum")):
            await stream.publish(Basket(number=number, item=item), list="baskets")
        async with asyncio.timeout(60):
            while len(came) < 3 or len(paid) < 2:
                await asyncio.sleep(0.05)
    await mq.database.close_async()


if __name__ == "__main__":
    mq.create_tables()
    Table.metadata.create_all(mq.database.engine)
    with mq:
        asyncio.run(main())
    valkey.stop()
    print("paid:", *sorted(paid))
