"""Uses of the integrations that a type checker refuses."""

from flask import Flask
from pydantic import BaseModel

from reliable_mq import ReliableMQ
from reliable_mq.contrib.django import mq as django_mq
from reliable_mq.contrib.fastapi import lifespan
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.contrib.litestar import LitestarMQ


class OrderPlaced(BaseModel):
    """A payload."""

    id: int


mq = ReliableMQ("shop")
ORDERS = mq.topic("orders", payload=OrderPlaced)
messages = FlaskMQ(mq)

lifespan(7)  # refused: arg-type reportArgumentType
FlaskMQ(Flask("shop"))  # refused: arg-type reportArgumentType
LitestarMQ(mq, prefix="/health")  # refused: call-arg reportCallIssue
messages.tx.send(ORDERS, {"id": 1})  # refused: misc reportArgumentType
django_mq.send("orders", {"id": 1}, kee="x")  # refused: call-arg reportCallIssue
django_mq.send(ORDERS, {"id": 1})  # refused: misc reportArgumentType
number: int = django_mq.send("orders", {"id": 1})  # refused: assignment reportAssignmentType


@messages.consumer(ORDERS, group="1")  # refused: arg-type reportArgumentType reportCallIssue
def another_payload(note: str) -> None:
    """The topic has orders."""


@messages.consumer("orders", group="2", batches=2)  # refused: call-overload reportCallIssue
def misspelt(placed: OrderPlaced) -> None:
    """There is no such option."""
