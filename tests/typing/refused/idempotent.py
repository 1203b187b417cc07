"""Calls of idempotent functions that a type checker refuses."""

from datetime import timedelta

from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ, injected

mq = ReliableMQ("shop")


@mq.idempotent(key="request")
def pay(request: str, amount: int, session: Session = injected) -> int:
    """Pay."""
    print(request, session)
    return amount


@mq.idempotent(key="request")
async def pay_async(request: str) -> int:
    """Pay."""
    return len(request)


@mq.idempotent(key="request")
def without_default(request: str, session: Session) -> None:
    """Its callers have to pass the session, because it has no default."""
    print(request, session)


pay("r-1")  # refused: call-arg reportCallIssue
pay("r-1", "7")  # refused: arg-type reportArgumentType
pay("r-1", 7, sesion=None)  # refused: call-arg reportCallIssue
pay("r-1", 7, session=7)  # refused: arg-type reportArgumentType
text: str = pay("r-1", 7)  # refused: assignment reportAssignmentType
pay_async(7)  # refused: arg-type unused-coroutine reportArgumentType reportUnusedCoroutine
number: int = pay_async("r")  # refused: assignment reportAssignmentType
without_default("r-1")  # refused: call-arg reportCallIssue


@mq.idempotent()  # refused: call-arg reportCallIssue
def without_key() -> None:
    """It has no key."""


@mq.idempotent(key="request", window=60)  # refused: arg-type reportArgumentType
def with_seconds(request: str) -> None:
    """The window is a timedelta."""
    print(request, timedelta(seconds=60))
