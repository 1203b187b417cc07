"""Handlers and options of consumers that a type checker refuses."""

from collections.abc import AsyncIterator, Iterator

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq import ReceivedMessage, ReliableMQ


class OrderPlaced(BaseModel):
    """A payload."""

    id: int


class Refund(BaseModel):
    """Another payload."""

    order: int


mq = ReliableMQ("shop")
ORDERS = mq.topic("orders", payload=OrderPlaced)


@mq.consumer("orders", group="1")  # refused: type-var reportArgumentType
def session_of_asyncio(placed: OrderPlaced, session: AsyncSession) -> None:
    """A `def` takes a `Session`."""


@mq.consumer("orders", group="2")  # refused: type-var reportArgumentType
async def session_of_threads(placed: OrderPlaced, session: Session) -> None:
    """An `async def` takes an `AsyncSession`."""


@mq.consumer("orders", group="3")  # refused: type-var reportArgumentType
def two_payloads(placed: OrderPlaced, refund: Refund) -> None:
    """There is one payload."""


@mq.consumer("orders", group="4")  # refused: type-var reportArgumentType
def too_many(a: OrderPlaced, b: Session, c: ReceivedMessage, d: Session) -> None:
    """There are three values at most."""


@mq.consumer("orders", group="5")  # refused: type-var reportArgumentType
def falsy(placed: OrderPlaced) -> bool:
    """False does not mean that the message comes again."""
    return False


@mq.consumer("orders", group="6")  # refused: type-var reportArgumentType
def generator(placed: OrderPlaced) -> Iterator[None]:
    """Calling it would not run it."""
    yield


@mq.consumer("orders", group="7")  # refused: type-var reportArgumentType
async def generator_of_asyncio(placed: OrderPlaced) -> AsyncIterator[None]:
    """Calling it would not run it."""
    yield


@mq.consumer(ORDERS, group="8")  # refused: arg-type reportArgumentType reportCallIssue
def another_payload(refund: Refund) -> None:
    """The topic has orders."""


@mq.consumer(ORDERS, group="9")  # refused: arg-type reportArgumentType reportCallIssue
async def another_payload_of_asyncio(refund: Refund, session: AsyncSession) -> None:
    """The topic has orders."""


@mq.consumer(ORDERS, group="10")  # refused: type-var reportArgumentType reportCallIssue
def falsy_too(placed: OrderPlaced) -> bool:
    """False does not mean that the message comes again."""
    return False


@mq.consumer(ORDERS)  # refused: call-overload reportCallIssue
def without_group(placed: OrderPlaced) -> None:
    """A consumer has a group."""


@mq.consumer("orders", group="11", ordred=False)  # refused: call-overload reportCallIssue
def misspelt(placed: OrderPlaced) -> None:
    """There is no such option."""


@mq.consumer("a", group="g", batch="4")  # refused: call-overload reportArgumentType reportCallIssue
def with_text(placed: OrderPlaced) -> None:
    """A number is a number."""
