"""The shop over every web framework: what `reliable_mq.contrib` gives to an application."""

from typing import Annotated

from fastapi import Depends, FastAPI
from flask import Flask
from litestar import Litestar, post
from litestar.di import NamedDependency
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from reliable_mq import AsyncTransaction, Transaction
from reliable_mq.contrib.asgi import AnswerDatabaseAway
from reliable_mq.contrib.asgi import lifespan as asgi_lifespan
from reliable_mq.contrib.fastapi import health_router, lifespan, sync_transaction, transaction
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.contrib.health import Health, liveness, readiness
from reliable_mq.contrib.litestar import LitestarMQ
from reliable_mq.contrib.starlette import health_routes
from reliable_mq.contrib.starlette import lifespan as starlette_lifespan
from shop.app import ORDERS, mq
from shop.models import OrderPlaced

api = FastAPI(lifespan=lifespan(mq))
api.include_router(health_router(mq, prefix="/probes"))
api.add_middleware(AnswerDatabaseAway, retry_after=10)
Tx = Annotated[AsyncTransaction, transaction(mq)]


def session_of_request() -> Session:
    """Make the session of a request."""
    return Session(mq.database.engine)


@api.post("/orders")
async def place(tx: Tx) -> str:
    """An `async def` endpoint."""
    tx.session.add(ORDERS)
    return await tx.send(ORDERS, OrderPlaced(id=1, amount=7), key="1")


@api.post("/sync")
def place_sync(
    tx: Annotated[Transaction, sync_transaction(mq, session=session_of_request)],
    own: Annotated[
        Transaction, sync_transaction(mq, session=Depends(session_of_request, scope="function"))
    ],
) -> str:
    """A `def` endpoint with the application's own session."""
    return tx.send(ORDERS, OrderPlaced(id=1, amount=7)) + own.send("notes", "a note")


messages = FlaskMQ(mq, Flask("shop"), health="")


@messages.consumer("orders", group="flask", batch=10)
def take(order: OrderPlaced, session: Session) -> None:
    """A handler in the context of the Flask application."""
    print(order.id, session)


@messages.consumer(ORDERS, group="flask with a type")
def take_typed(order: OrderPlaced) -> None:
    """A handler of a topic with a payload type."""
    print(order.id)


def place_flask() -> str:
    """A view of Flask."""
    with messages.transaction(database="main") as tx:
        tx.send(ORDERS, OrderPlaced(id=1, amount=7))
    return messages.tx.send(ORDERS, OrderPlaced(id=1, amount=7))


@post("/orders")
async def place_litestar(tx: NamedDependency[AsyncTransaction]) -> str:
    """A handler of Litestar."""
    return await tx.send(ORDERS, OrderPlaced(id=1, amount=7))


star = Litestar([place_litestar], plugins=[LitestarMQ(mq, tx="tx", consume=False)])
plain = Starlette(routes=health_routes(mq), lifespan=starlette_lifespan(mq))
other = Starlette(lifespan=asgi_lifespan(mq, consume=False))
health: Health = readiness(mq)
status: int = liveness(mq).status
