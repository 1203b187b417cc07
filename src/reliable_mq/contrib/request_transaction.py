"""The transaction of one request, in a session of the application or of ours.

`mq.transaction(session)` joins a transaction that is open. A request needs one thing more: a query
of another part of it (who is logged in?) begins a transaction by SQLAlchemy's autobegin, which
nobody would commit.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransactionOrigin

from reliable_mq.app.application import ReliableMQ
from reliable_mq.errors import UsageError
from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.sql_transaction import Transaction
from reliable_mq.outbox.transaction_block import Given, source_of

__all__ = [
    "async_request_transaction",
    "check_messaging",
    "is_begun_by_its_owner",
    "request_transaction",
]


def check_messaging(mq: object, call: str) -> None:
    """Check that a function was given the application's messaging.

    Raises:
        UsageError: it is something else, such as the web application.
    """
    if not isinstance(mq, ReliableMQ):
        name = type(mq).__name__
        raise UsageError(f"{call}({name}): give it your ReliableMQ, as {call}(mq)")


@contextmanager
def request_transaction(
    mq: ReliableMQ, given: Given | None = None, *, database: str | None = None, half: bool = False
) -> Iterator[Transaction]:
    """Commit at the end of the block; roll back if it raises.

    Args:
        mq: the application's messaging.
        given: the application's session. If the application has called its `begin()`, then that
            code ends the transaction, and the block only joins it. None: a session of ours.
        database: the name of the database; None: that of the session, or "main".
        half: see `ReliableMQ.transaction`.
    """
    session = None if given is None else source_of(given)
    queried = session if isinstance(session, Session) and _is_begun_by_query(session) else None
    try:
        with mq.transaction(session, database=database, half=half) as tx:
            yield tx
        if queried is not None:
            queried.commit()
    except BaseException:
        if queried is not None:
            queried.rollback()
        raise


@asynccontextmanager
async def async_request_transaction(
    mq: ReliableMQ, given: Given | None = None, *, database: str | None = None, half: bool = False
) -> AsyncIterator[AsyncTransaction]:
    """Do the same with an `AsyncSession`."""
    session = None if given is None else source_of(given)
    queried = None
    if isinstance(session, AsyncSession) and _is_begun_by_query(session.sync_session):
        queried = session
    try:
        async with mq.transaction(session, database=database, half=half) as tx:
            yield tx
        if queried is not None:
            await queried.commit()
    except BaseException:
        if queried is not None:
            await queried.rollback()
        raise


def is_begun_by_its_owner(given: Given) -> bool:
    """Return whether the application has called `begin()` of its session; then it also commits."""
    source = source_of(given)
    session = source.sync_session if isinstance(source, AsyncSession) else source
    return (
        isinstance(session, Session)
        and session.in_transaction()
        and not _is_begun_by_query(session)
    )


def _is_begun_by_query(session: Session) -> bool:
    begun = session.get_transaction()
    return begun is not None and begun.origin is SessionTransactionOrigin.AUTOBEGIN
