"""What a program has at hand, and no message carries: rows, requests, the web application.

A list as that of `wrong_code`: the use, and the sentence that says what to do.
"""

import io
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.requests import Request
from tests.cli.wrong_code import THREE, Model, Placed, odd, sent, sent_many, shop

from reliable_mq import AsyncTransaction
from reliable_mq.contrib.asgi import lifespan
from reliable_mq.contrib.fastapi import health_router, transaction
from reliable_mq.testing.message_world import MessageWorld

USER = Depends(lambda: None)


class Rows(DeclarativeBase):
    """The rows of an application."""


class Row(Rows):
    __tablename__ = "row"
    id: Mapped[int] = mapped_column(primary_key=True)

    def __str__(self) -> str:
        return f"row-{self.id}"


async def sends(payload: dict[str, Any], tx: AsyncTransaction) -> None:
    """Handle nothing."""


def depends(payload: dict[str, Any], user: Any = USER) -> None:
    """Handle nothing."""


def handled_as(kind: Any) -> None:
    def pay(payload: Any) -> None:
        """Handle nothing."""

    pay.__annotations__ = {"payload": kind}
    shop().consumer("orders", group="g")(pay)


IN_HAND: dict[str, tuple[Callable[[], object], str]] = {
    "a key that is a model": (
        lambda: sent("orders", {}, key=Model(id=1)),
        "a key is a text or a number, not a Model; give its id",
    ),
    "a key that is a row": (
        lambda: sent("orders", {}, key=Row(id=1)),
        "a key is a text or a number, not a Row; give its id",
    ),
    "tx.send of a row": (
        lambda: sent("orders", Row(id=1)),
        "not a Row: send its id, and load the row in the handler",
    ),
    "tx.send of a row in a dict": (
        lambda: sent("orders", {"order": Row(id=1)}),
        "order: Encoding objects of type Row is unsupported: send its id, and load the row in",
    ),
    "tx.send of a file": (
        lambda: sent("orders", {"file": io.BytesIO()}),
        "Encoding objects of type _io.BytesIO is unsupported: store the file, and send its name",
    ),
    "a handler of a row": (
        lambda: handled_as(Row),
        "no payload is an object of Row: send its id, and load the row in the handler",
    ),
    "a handler with a transaction of a request": (
        lambda: shop().consumer("orders", group="g")(sends),  # type: ignore[type-var]
        "'tx': no AsyncTransaction is given to a handler: annotate it with AsyncSession, and send",
    ),
    "a handler with a dependency of FastAPI": (
        lambda: shop().consumer("orders", group="g")(depends),
        "'user' is a dependency of FastAPI, which nobody fills here: annotate it with Session, or",
    ),
    "a transaction of the web application": (
        lambda: transaction(FastAPI()),  # type: ignore[arg-type]
        "transaction(FastAPI): give it your ReliableMQ, as transaction(mq)",
    ),
    "health of the web application": (
        lambda: health_router(FastAPI()),  # type: ignore[arg-type]
        "health_router(FastAPI): give it your ReliableMQ, as health_router(mq)",
    ),
    "a handler of a request": (
        lambda: handled_as(Request),
        "no payload is an object of Request: send the fields of the request that the handler needs",
    ),
    "a handler of an object": (
        lambda: handled_as(list[Callable[[], None]]),
        "no payload is an object of Callable: take a dict, a dataclass or a pydantic model",
    ),
    "tx.send of a class": (
        lambda: sent("orders", Placed),
        "list, str or bytes, not the class Placed: send an object of it",
    ),
    "tx.send of an object in a dict": (
        lambda: sent("orders", {"items": [{"price": 1}, {"price": THREE, "by": object()}]}),
        "a dict cannot be written as JSON: items[1].by: Encoding objects of type object",
    ),
    "tx.send of an object in a dataclass": (
        lambda: sent("orders", Placed(by=object())),
        "a Placed cannot be written as JSON: by: ",
    ),
    "a lifespan that was not called": (
        lambda: lifespan(odd)(shop()),  # type: ignore[arg-type]
        "lifespan(function): give it your ReliableMQ, as lifespan=lifespan(mq)",
    ),
    "a world of a text": (
        lambda: MessageWorld("shop:mq"),  # type: ignore[arg-type]
        "MessageWorld(str): give it your ReliableMQ",
    ),
    "an ordering key of all that names a field of a model": (
        lambda: sent_many([Model(id=1)], ordering_key="id"),
        "for the field of each one write ordering_key=lambda payload: payload.id",
    ),
    "tx.send_many of one model": (
        lambda: sent_many(Model(id=1)),
        "send_many: a Model is one payload: use send, or a list",
    ),
    "a key of all that names a field": (
        lambda: sent_many([{"id": 1}], key="id"),
        "key='id' would be the key of every message: for the field of each one write key=lambda p",
    ),
}
