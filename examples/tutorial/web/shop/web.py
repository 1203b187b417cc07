"""The web process: `uvicorn shop.web:app`."""

from typing import Annotated

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from reliable_mq import Transaction
from reliable_mq.contrib.fastapi import health_router, lifespan, sync_transaction
from shop.messaging import mq
from shop.models import Order
from shop.orders import place_order

app = FastAPI(lifespan=lifespan(mq))
app.include_router(health_router(mq))
Tx = Annotated[Transaction, sync_transaction(mq)]


class NewOrder(BaseModel):
    """What a customer asks for."""

    item: str


class OrderState(BaseModel):
    """What a customer is answered."""

    id: int
    item: str
    is_paid: bool


@app.post("/orders", status_code=201)
def create(new: NewOrder, tx: Tx) -> OrderState:
    """Place an order."""
    return OrderState(id=place_order(tx, new.item), item=new.item, is_paid=False)


@app.get("/orders/{number}")
def read(number: int, tx: Tx) -> OrderState:
    """Show an order."""
    order = tx.session.get(Order, number)
    if order is None:
        raise HTTPException(404, f"there is no order {number}")
    return OrderState(id=order.id, item=order.item, is_paid=order.is_paid)
