"""FastAPI: the lifespan, a transaction for each request, and health endpoints.

    mq = ReliableMQ("shop", …)
    app = FastAPI(lifespan=lifespan(mq))
    Tx = Annotated[AsyncTransaction, transaction(mq)]

    @app.post("/orders", status_code=201)
    async def place(order: NewOrder, tx: Tx) -> None:
        tx.session.add(Order(item=order.item))
        await tx.send("orders", {"item": order.item})

**When it commits.** After the endpoint has returned and its result was made a response, and before
the first byte of the response is sent. So a client that gets a success can rely on it. An endpoint
that raises (also an `HTTPException`) rolls back. If the connection to the client breaks after the
commit, order and message exist although the client got no answer: let clients send an
Idempotency-Key, see `ReliableMQ.idempotent`. An endpoint that *returns* a response of status 400
commits: raise instead.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.asgi import AnswerDatabaseAway, lifespan
from reliable_mq.contrib.endpoint_checks import RequestKind, kinds
from reliable_mq.contrib.health import Health, liveness, readiness
from reliable_mq.contrib.request_transaction import (
    async_request_transaction,
    check_messaging,
    is_begun_by_its_owner,
    request_transaction,
)
from reliable_mq.errors import UsageError
from reliable_mq.extras import extra_of
from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.sql_transaction import Transaction

with extra_of("reliable_mq.contrib.fastapi"):
    from fastapi import APIRouter, Depends, params
    from fastapi.responses import JSONResponse

__all__ = [
    "AnswerDatabaseAway",
    "health_router",
    "lifespan",
    "sync_transaction",
    "transaction",
]

OwnSession = Callable[..., Any] | params.Depends
"""An application's dependency of a session: its function, or `Depends(function, …)`."""


def transaction(
    mq: ReliableMQ,
    *,
    session: OwnSession | None = None,
    database: str | None = None,
    half: bool = False,
) -> Any:
    """Return the dependency of an `async def` endpoint: an `AsyncTransaction` of this request.

    Write it as `Tx = Annotated[AsyncTransaction, transaction(mq)]`. All that ask for it within one
    request get the same transaction.

    Args:
        mq: the application's messaging.
        session: the application's own dependency of an `AsyncSession`, as the endpoints name it:
            `get_session`, or `Depends(get_session, scope="function")`. The messages are then in the
            transaction of that session. It is committed here, also if a query of another dependency
            has begun it. If the dependency calls `session.begin()`, the dependency commits; then it
            needs `scope="function"`. Without it, it would commit after the response, and requests
            raise `UsageError`.
        database: the name of the database; None: that of the session, or "main".
        half: see `ReliableMQ.transaction`.
    """
    check_messaging(mq, "transaction")
    return _OfRequest(_asynchronous(mq, _own(session), database, half), scope="function")


def sync_transaction(
    mq: ReliableMQ,
    *,
    session: OwnSession | None = None,
    database: str | None = None,
    half: bool = False,
) -> Any:
    """Return the dependency of a `def` endpoint: a `Transaction` of this request.

    Write it as `Tx = Annotated[Transaction, sync_transaction(mq)]`. The rest is as for
    `transaction`, with a `Session`.
    """
    check_messaging(mq, "sync_transaction")
    return _OfRequest(_synchronous(mq, _own(session), database, half), scope="function")


class _OfRequest(params.Depends):
    """A dependency that refuses to be put into another `Depends`: the commit would come late."""

    @property
    def __signature__(self) -> Any:  # FastAPI reads that of what `Depends` is given
        raise UsageError(
            "Depends(transaction(mq)): it is the dependency already; write "
            "Annotated[AsyncTransaction, transaction(mq)], for a def endpoint "
            "Annotated[Transaction, sync_transaction(mq)]"
        )

    def __call__(self) -> Any:
        """Be callable: else FastAPI refuses it before it reads the signature."""
        return self.__signature__


@dataclass(frozen=True)
class _Own:
    """An application's dependency. Two are equal if FastAPI calls their function once."""

    function: Callable[..., Any] | None
    use_cache: bool
    scope: str | None
    depends: params.Depends = field(compare=False)  # older ones have no hash

    def check_kind(self, given: Any, wanted: type, call: str) -> None:
        """Check that the session is for this kind of endpoint.

        Raises:
            UsageError: it is a session of the other kind.
        """
        if isinstance(given, Session | AsyncSession) and not isinstance(given, wanted):
            name = getattr(self.function, "__name__", "get_session")
            raise UsageError(
                f"session={name}: it gives {type(given).__name__}, so write "
                f"{call}(mq, session={name})"
            )

    def refuse_late_commit(self, given: Any) -> None:
        """Refuse a session that is committed after the response, where nobody sees it fail.

        Raises:
            UsageError: its dependency has begun the transaction, and FastAPI ends it late.
        """
        if self.scope == "function" or not is_begun_by_its_owner(given):
            return
        name = getattr(self.function, "__name__", "get_session")
        raise UsageError(
            f"{name} begins the transaction itself, and FastAPI would let it commit after the "
            "response: the client would get a success although the commit fails. Write "
            f'session=Depends({name}, scope="function") here and in the endpoints, or let {name} '
            "only make the session; then `transaction` commits it"
        )


def _own(session: OwnSession | None) -> _Own | None:
    if session is None:
        return None
    if isinstance(session, sessionmaker | async_sessionmaker):
        word = "async with" if isinstance(session, async_sessionmaker) else "with"
        raise UsageError(
            f"session={type(session).__name__}: give a dependency, a function that does "
            f"`{word} new_session() as session: yield session`"
        )
    given: params.Depends = session if isinstance(session, params.Depends) else Depends(session)
    return _Own(given.dependency, given.use_cache, given.scope, given)


@lru_cache(maxsize=256)  # the same function again, so that FastAPI calls it once in a request
def _asynchronous(
    mq: ReliableMQ, own: _Own | None, database: str | None, half: bool
) -> Callable[..., AsyncIterator[AsyncTransaction]]:
    async def of_request() -> AsyncIterator[AsyncTransaction]:
        async with async_request_transaction(mq, database=database, half=half) as tx:
            yield tx

    kinds[of_request] = RequestKind(is_async=True, is_ours=database is None)
    if own is None:
        return of_request

    async def of_session(given: Any = own.depends) -> AsyncIterator[AsyncTransaction]:
        own.check_kind(given, AsyncSession, "sync_transaction")
        own.refuse_late_commit(given)
        async with async_request_transaction(mq, given, database=database, half=half) as tx:
            yield tx

    kinds[of_session] = RequestKind(is_async=True, is_ours=False)
    return of_session


@lru_cache(maxsize=256)
def _synchronous(
    mq: ReliableMQ, own: _Own | None, database: str | None, half: bool
) -> Callable[..., Iterator[Transaction]]:
    def of_request() -> Iterator[Transaction]:
        with request_transaction(mq, database=database, half=half) as tx:
            yield tx

    kinds[of_request] = RequestKind(is_async=False, is_ours=database is None)
    if own is None:
        return of_request

    def of_session(given: Any = own.depends) -> Iterator[Transaction]:
        own.check_kind(given, Session, "transaction")
        own.refuse_late_commit(given)
        with request_transaction(mq, given, database=database, half=half) as tx:
            yield tx

    kinds[of_session] = RequestKind(is_async=False, is_ours=False)
    return of_session


def health_router(mq: ReliableMQ, *, prefix: str = "/health") -> APIRouter:
    """Return a router with `GET {prefix}/live` and `GET {prefix}/ready`: 200, or 503 with a reason.

    Write `app.include_router(health_router(mq))`. The module `health` says what is checked. Both
    are left out of the OpenAPI document.
    """
    check_messaging(mq, "health_router")
    router = APIRouter(prefix=prefix, include_in_schema=False)

    @router.get("/live")
    async def live() -> JSONResponse:  # not in a thread: all of them may be waiting
        return _answered(liveness(mq))

    @router.get("/ready")
    def ready() -> JSONResponse:
        return _answered(readiness(mq))

    return router


def _answered(health: Health) -> JSONResponse:
    return JSONResponse(health.body, health.status)
