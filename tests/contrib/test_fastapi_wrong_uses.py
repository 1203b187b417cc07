"""FastAPI: what would go wrong silently is refused or warned of when the server starts."""

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from tests.contrib.kept_orders import INSERT, kept

from reliable_mq import AsyncTransaction, ReliableMQ, Transaction
from reliable_mq.contrib.fastapi import lifespan, sync_transaction, transaction
from reliable_mq.errors import UsageError
from reliable_mq.extras import ExtraMissing

Key = Annotated[str, Header()]


def started(app: FastAPI) -> list[str]:
    """Start a server and end it; return its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with TestClient(app):
            pass
    return [str(each.message) for each in found if each.category is UserWarning]


@pytest.mark.parametrize("is_included", [False, True])
def test_a_server_does_not_start_if_a_route_runs_past_its_idempotent_function(
    mq: ReliableMQ, is_included: bool
) -> None:
    app, router = FastAPI(lifespan=lifespan(mq)), APIRouter()
    place_of = router if is_included else app

    @mq.idempotent(key="idempotency_key")
    @place_of.post("/orders")
    async def place(idempotency_key: Key) -> int:
        return 1

    if is_included:
        app.include_router(router, prefix="/v1")
    with pytest.raises(UsageError, match=r"/orders: place runs without its @mq.idempotent"):
        started(app)


def test_an_idempotent_function_below_its_route_is_right(mq: ReliableMQ) -> None:
    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/orders")
    @mq.idempotent(key="idempotency_key")
    async def place(tx: Annotated[AsyncTransaction, transaction(mq)], idempotency_key: Key) -> int:
        return 1

    assert started(app) == []


def sessions(mq: ReliableMQ) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def get_session() -> AsyncIterator[AsyncSession]:
        async with mq.database.async_session() as session:
            yield session

    def get_db() -> Iterator[Session]:
        with mq.database.session() as session:
            yield session

    return get_session, get_db


def test_an_own_session_beside_a_transaction_of_another_one_warns(mq: ReliableMQ) -> None:
    get_session, _ = sessions(mq)
    app = FastAPI(lifespan=lifespan(mq))
    own = Annotated[AsyncSession, Depends(get_session)]

    @app.post("/lost/{number}")
    async def lose(
        number: int,
        db: own,
        tx: Annotated[AsyncTransaction, transaction(mq)],
    ) -> None:
        await tx.send("orders", {"id": number})

    @app.post("/kept/{number}")
    async def keep(
        number: int,
        db: own,
        tx: Annotated[AsyncTransaction, transaction(mq, session=get_session)],
    ) -> None:
        await tx.send("orders", {"id": number})

    (text,) = started(app)
    assert text.startswith("POST /lost/{number}: lose has its own session (get_session)")
    assert text.endswith("write transaction(mq, session=get_session)")


def test_a_transaction_that_blocks_in_an_async_def_warns(mq: ReliableMQ) -> None:
    app = FastAPI(lifespan=lifespan(mq))
    kind = Annotated[Transaction, sync_transaction(mq)]

    @app.post("/blocks")
    async def block(tx: kind) -> None: ...

    @app.post("/fine")
    def work(tx: kind) -> None: ...

    (text,) = started(app)
    assert text.startswith("POST /blocks: block is an async def with sync_transaction(mq)")


def test_a_session_of_the_other_kind_names_the_right_dependency(mq: ReliableMQ) -> None:
    get_session, get_db = sessions(mq)
    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/async")
    async def place(tx: Annotated[AsyncTransaction, transaction(mq, session=get_db)]) -> None: ...

    @app.post("/sync")
    def write(tx: Annotated[Transaction, sync_transaction(mq, session=get_session)]) -> None: ...

    with TestClient(app) as client:
        with pytest.raises(UsageError, match=r"write sync_transaction\(mq, session=get_db\)"):
            client.post("/async")
        with pytest.raises(UsageError, match=r"write transaction\(mq, session=get_session\)"):
            client.post("/sync")


def test_a_send_after_the_endpoint_says_where_to_send(mq: ReliableMQ) -> None:
    app = FastAPI(lifespan=lifespan(mq))
    said: list[str] = []

    async def later(tx: AsyncTransaction) -> None:
        try:
            await tx.send("orders", {})
        except UsageError as error:
            said.append(str(error))

    @app.post("/later")
    async def place(
        tasks: BackgroundTasks, tx: Annotated[AsyncTransaction, transaction(mq)]
    ) -> None:
        await tx.session.execute(INSERT, {"id": 7})
        tasks.add_task(later, tx)

    with TestClient(app) as client:
        assert client.post("/later").status_code == 200
    assert kept(mq) == ([7], 0)
    assert "before the endpoint returns, or within `with mq.transaction()`" in said[0]


def test_a_def_endpoint_with_the_transaction_of_an_async_def_names_the_other_one(
    mq: ReliableMQ,
) -> None:
    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/orders")
    def place(tx: Annotated[AsyncTransaction, transaction(mq)]) -> None:
        _ = tx.send("orders", {})

    with (
        TestClient(app) as client,
        pytest.raises(UsageError, match=r"in a def endpoint take sync_transaction\(mq\)"),
    ):
        client.post("/orders")
    assert kept(mq) == ([], 0)


@pytest.mark.parametrize("kind", [AsyncTransaction, Transaction])
def test_a_transaction_without_its_dependency_says_how_to_write_it(
    mq: ReliableMQ, kind: type
) -> None:
    def bare(tx: Any) -> None: ...

    bare.__annotations__["tx"] = kind
    with pytest.raises(UsageError, match=rf"write tx: Annotated\[{kind.__name__}, "):
        FastAPI().post("/orders")(bare)
    bare.__annotations__["tx"] = Annotated[kind, transaction]
    with pytest.raises(UsageError, match=rf"write tx: Annotated\[{kind.__name__}, "):
        FastAPI().post("/orders")(bare)


def test_a_begun_transaction_is_not_begun_again(mq: ReliableMQ) -> None:
    async def begin_again() -> None:
        async with mq.transaction() as tx, tx:  # type: ignore[attr-defined]
            pass

    with pytest.raises(UsageError, match=r"write tx.send\(…\) without a `with tx:`"):
        asyncio.run(begin_again())
    with (
        pytest.raises(UsageError, match=r"has begun already"),
        mq.transaction() as tx,
        tx,  # type: ignore[attr-defined]
    ):
        pass


def test_the_messaging_as_a_lifespan_says_how_to_write_it(mq: ReliableMQ) -> None:
    given: Any = mq
    with pytest.raises(UsageError, match=r"write lifespan=lifespan\(mq\)"):
        started(FastAPI(lifespan=given))


def test_a_server_of_the_messaging_ends_at_its_start(mq: ReliableMQ) -> None:
    """The start is refused in ASGI's words: an exception would mean that there is no lifespan."""
    served: Any = mq
    told: list[dict[str, str]] = []

    async def serve(*, at_once: bool) -> None:
        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: dict[str, str]) -> None:
            told.append(message)

        scope = {"type": "lifespan"}
        if at_once:
            await served(scope, receive, send)
        else:  # as uvicorn calls what is no coroutine function
            await served(scope)(receive, send)

    for at_once in (True, False):
        asyncio.run(serve(at_once=at_once))
    assert [each["type"] for each in told] == ["lifespan.startup.failed"] * 2
    assert "as in `uvicorn shop:app`" in told[0]["message"]
    with pytest.raises(UsageError, match=r"as in `uvicorn shop:app`"):
        served({"type": "http"})
    with pytest.raises(TypeError, match=r"as in `uvicorn shop:app`"):  # is it a factory?
        served()


def test_a_server_without_the_asynchronous_driver_does_not_start(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiosqlite", None)
    app = FastAPI(lifespan=lifespan(mq))

    @app.get("/sync")
    def show(tx: Annotated[Transaction, sync_transaction(mq)]) -> None: ...

    assert started(app) == []

    @app.post("/orders")
    async def place(tx: Annotated[AsyncTransaction, transaction(mq)]) -> None: ...

    with pytest.raises(ExtraMissing, match="aiosqlite is not installed"):
        started(app)


def test_the_maker_of_sessions_is_no_dependency(mq: ReliableMQ) -> None:
    with pytest.raises(UsageError, match=r"`async with new_session\(\) as session: yield"):
        transaction(mq, session=async_sessionmaker())
    with pytest.raises(UsageError, match=r"`with new_session\(\) as session: yield"):
        sync_transaction(mq, session=sessionmaker())


def test_a_lifespan_that_is_a_generator_names_its_decorator(mq: ReliableMQ) -> None:
    async def own(_app: Any) -> AsyncIterator[None]:
        yield

    given: Any = own
    with pytest.raises(UsageError, match="write @asynccontextmanager"):
        lifespan(mq, given)


def test_a_task_that_sends_after_the_block_says_that_it_has_ended(mq: ReliableMQ) -> None:
    async def send_in_a_task() -> None:
        with pytest.raises(UsageError, match="was not awaited in this block"):
            async with mq.transaction() as tx:
                task = asyncio.create_task(tx.send("orders", {}))
        with pytest.raises(UsageError, match="this transaction has ended"):
            await task
        await mq.databases.close_async()

    asyncio.run(send_in_a_task())
