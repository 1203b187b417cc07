"""FastAPI: the lifespan opens messaging, and a request's rows and messages are one commit."""

from threading import Event
from typing import Annotated

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import AsyncTransaction, ReliableMQ
from reliable_mq.contrib.fastapi import health_router, lifespan, transaction

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
app = FastAPI(lifespan=lifespan(mq))
app.include_router(health_router(mq))
Tx = Annotated[AsyncTransaction, transaction(mq)]
paid = Event()


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    """What a client asks for."""

    item: str


@app.post("/orders", status_code=201)
async def place(order: NewOrder, tx: Tx) -> int:
    """Write an order and announce it: both, or neither."""
    row = Order(item=order.item)
    tx.session.add(row)
    await tx.session.flush()
    await tx.send("orders", {"id": row.id})
    if order.item == "rum":
        raise HTTPException(422, "no rum is left")
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
    with TestClient(app) as client:
        print(client.get("/health/ready").json()["status"])
        for item in ("rum", "tea"):
            answer = client.post("/orders", json={"item": item})
            print(item, answer.status_code, answer.json())
        paid.wait(timeout=60)
