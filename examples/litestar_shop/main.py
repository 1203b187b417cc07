"""Litestar: a plugin, and a transaction as a dependency."""

from threading import Event

from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.exceptions import ClientException
from litestar.params import FromPath
from litestar.testing import TestClient
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import AsyncTransaction, ReliableMQ
from reliable_mq.contrib.litestar import LitestarMQ

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
paid = Event()


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


@post("/orders/{item:str}")
async def place(item: FromPath[str], tx: NamedDependency[AsyncTransaction]) -> int:
    """Write an order and announce it: both, or neither."""
    row = Order(item=item)
    tx.session.add(row)
    await tx.session.flush()
    await tx.send("orders", {"id": row.id})
    if item == "rum":
        raise ClientException("no rum is left")
    return row.id


@mq.consumer("orders", group="payments")
def take_payment(placed: dict[str, int], session: Session) -> None:
    """Take the payment; it commits together with the note that this message is done."""
    order = session.get_one(Order, placed["id"])
    order.is_paid = True
    print("order", order.id, order.item, "is paid")
    paid.set()


if __name__ == "__main__":
    mq.create_tables()
    Table.metadata.create_all(mq.database.engine)
    with TestClient(Litestar([place], plugins=[LitestarMQ(mq)])) as client:
        for item in ("rum", "tea"):
            answer = client.post(f"/orders/{item}")
            print(item, answer.status_code, answer.text)
        paid.wait(timeout=60)
