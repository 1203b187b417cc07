"""An API whose clients may send a request again: the Idempotency-Key header, with FastAPI.

Whoever gets no answer cannot know whether the order was placed, and asks again with the same key.
Order, message, key and answer are one commit, so the second request gets the first one's answer.
Answers as the IETF's draft of that header wants them: 400 without a key, 422 when the key stands
for another request, 409 while the first one runs.
"""

from threading import Event
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from reliable_mq import ReliableMQ, injected
from reliable_mq.contrib.fastapi import lifespan
from reliable_mq.errors import CallRefused, CallRunning, KeyReused

mq = ReliableMQ("shop", broker="embedded:broker", database="sqlite:///shop.db")
packed = Event()
parcels: list[str] = []


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class NewOrder(BaseModel):
    """What a client asks for."""

    item: str


class Placed(BaseModel):
    """What a client is answered."""

    number: int


app = FastAPI(lifespan=lifespan(mq))


@app.post("/orders", status_code=201)
@mq.idempotent(key="idempotency_key", scope="POST /orders", compare="order")
async def place_order(
    order: NewOrder,
    session: AsyncSession = injected,  # ours: neither a client nor FastAPI is asked for it
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Placed:
    """Place an order and announce it."""
    row = Order(item=order.item)
    session.add(row)
    await session.flush()
    async with mq.transaction(session) as tx:
        await tx.send("orders", {"number": row.id, "item": row.item})
    return Placed(number=row.id)


@app.exception_handler(CallRefused)
async def refuse(_request: Request, error: CallRefused) -> JSONResponse:
    """Say why a request was not taken."""
    if isinstance(error, CallRunning):
        wait = {"Retry-After": str(int(error.retry_after) + 1)}
        return JSONResponse({"detail": str(error)}, 409, headers=wait)
    return JSONResponse({"detail": str(error)}, 422 if isinstance(error, KeyReused) else 400)


@mq.consumer("orders", group="packing")
def pack(order: dict[str, object]) -> None:
    """Pack it."""
    parcels.append(f"order {order['number']}: {order['item']}")
    packed.set()


if __name__ == "__main__":
    mq.create_tables()
    Table.metadata.create_all(mq.database.engine)
    with TestClient(app) as client:
        for body, key in (("tea", "k-1"), ("tea", "k-1"), ("tea", "k-1"), ("rum", "k-1")):
            headers = {"Idempotency-Key": key}
            answer = client.post("/orders", json={"item": body}, headers=headers)
            print(body, key, answer.status_code, answer.json())
        answer = client.post("/orders", json={"item": "tea"})
        print("tea, no key", answer.status_code, answer.json())
        packed.wait(timeout=60)
    print("packed:", *parcels)
