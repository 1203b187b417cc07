"""The web process: `uvicorn shop.web:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.orm import Session

from shop.messaging import mq
from shop.models import Order
from shop.orders import place_order


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Send what is left to send, and close the connections, when the process stops."""
    yield
    mq.close()


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    """What a customer asks for."""

    item: str


class OrderState(BaseModel):
    """What a customer is answered."""

    id: int
    item: str
    is_paid: bool


@app.post("/orders", status_code=201)
def create(new: NewOrder) -> OrderState:
    """Place an order."""
    return OrderState(id=place_order(new.item), item=new.item, is_paid=False)


@app.get("/orders/{number}")
def read(number: int) -> OrderState:
    """Show an order."""
    with Session(mq.database.engine) as session:
        order = session.get(Order, number)
    if order is None:
        raise HTTPException(404, f"there is no order {number}")
    return OrderState(id=order.id, item=order.item, is_paid=order.is_paid)
