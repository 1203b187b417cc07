"""A request with an Idempotency-Key: its answer is stored in the commit of its order, or not."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header
from fastapi.testclient import TestClient
from flask import Flask, jsonify, request
from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.params import Parameter
from litestar.testing import TestClient as LitestarClient
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.contrib.kept_orders import INSERT, kept

from reliable_mq import AsyncTransaction, ReliableMQ, Transaction, injected
from reliable_mq.contrib.fastapi import lifespan, sync_transaction, transaction
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.contrib.litestar import LitestarMQ
from reliable_mq.errors import UsageError

KEY = {"Idempotency-Key": "k-1"}
Key = Annotated[str | None, Header()]
KeyOfLitestar = Annotated[str, Parameter(header="Idempotency-Key")]


def fastapi_shop(mq: ReliableMQ) -> FastAPI:
    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/async", status_code=201)
    @mq.idempotent(key="idempotency_key", scope="place")
    async def place(
        tx: Annotated[AsyncTransaction, transaction(mq)], idempotency_key: Key = None
    ) -> int:
        await tx.session.execute(INSERT, {"id": 7})
        await tx.send("orders", {"id": 7})
        return 7

    @app.post("/sync", status_code=201)
    @mq.idempotent(key="idempotency_key", scope="place")
    def place_sync(
        tx: Annotated[Transaction, sync_transaction(mq)], idempotency_key: Key = None
    ) -> int:
        tx.session.execute(INSERT, {"id": 7})
        tx.send("orders", {"id": 7})
        return 7

    return app


def litestar_shop(mq: ReliableMQ) -> Litestar:
    @post("/litestar")
    @mq.idempotent(key="idempotency_key", scope="place")
    async def place(tx: NamedDependency[AsyncTransaction], idempotency_key: KeyOfLitestar) -> int:
        await tx.session.execute(INSERT, {"id": 7})
        await tx.send("orders", {"id": 7})
        return 7

    return Litestar([place], plugins=[LitestarMQ(mq)])


def flask_shop(mq: ReliableMQ) -> Flask:
    app, messages = Flask("shop"), FlaskMQ(mq)
    messages.init_app(app)

    @mq.idempotent(key="key", scope="place")
    def place(key: str, tx: Transaction) -> int:
        tx.session.execute(INSERT, {"id": 7})
        tx.send("orders", {"id": 7})
        return 7

    @app.post("/flask")
    def view() -> Any:
        return jsonify(place(request.headers["Idempotency-Key"], messages.tx)), 201

    @app.post("/trap")
    @mq.idempotent(key=lambda: request.headers["Idempotency-Key"], scope="trap")
    def trap() -> str:
        messages.tx.session.execute(INSERT, {"id": 7})
        return "placed"

    @app.post("/own")
    @mq.idempotent(key=lambda: request.headers["Idempotency-Key"], scope="place")
    def own(session: Session = injected) -> list[int]:
        session.execute(INSERT, {"id": 7})
        with mq.transaction(session) as tx:
            tx.send("orders", {"id": 7})
        return [7]

    return app


@pytest.fixture
def fails() -> Iterator[list[str]]:
    """Let the first COMMIT of an order fail, as a deferred constraint does."""
    orders: set[int] = set()
    failures = ["the commit fails"]

    def note(connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "INTO orders" in statement:
            orders.add(id(connection))

    def fail(connection: Any) -> None:
        if id(connection) in orders and failures:
            raise OSError(failures.pop())

    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", fail)
    yield failures
    event.remove(Engine, "before_cursor_execute", note)
    event.remove(Engine, "commit", fail)


@pytest.mark.usefixtures("fails")
@pytest.mark.parametrize("path", ["/async", "/sync", "/litestar", "/flask"])
def test_no_answer_is_stored_when_the_commit_of_its_order_fails(mq: ReliableMQ, path: str) -> None:
    with ExitStack() as clients:
        client: Any
        if path == "/litestar":
            client = clients.enter_context(
                LitestarClient(litestar_shop(mq), raise_server_exceptions=False)
            )
        elif path == "/flask":
            client = flask_shop(mq).test_client()
        else:
            client = clients.enter_context(
                TestClient(fastapi_shop(mq), raise_server_exceptions=False)
            )
        assert client.post(path, headers=KEY).status_code == 500
        assert kept(mq) == ([], 0)

        assert [client.post(path, headers=KEY).status_code for _ in range(2)] == [201, 201]
        assert kept(mq) == ([7], 1)


def test_a_flask_view_is_told_to_take_a_session(mq: ReliableMQ) -> None:
    client = flask_shop(mq).test_client()
    assert client.post("/trap", headers=KEY).status_code == 500
    assert kept(mq) == ([], 0)
    assert [client.post("/own", headers=KEY).json for _ in range(2)] == [[7], [7]]
    assert kept(mq) == ([7], 1)


def own_shop(mq: ReliableMQ, *, scope: Any, begins: bool = True) -> FastAPI:
    """Return a shop whose own dependency of a session begins the transaction, and so commits."""

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(mq.database.async_engine) as session:
            if begins:
                async with session.begin():
                    yield session
            else:
                yield session

    app = FastAPI(lifespan=lifespan(mq))
    own: Any = get_session if scope is None else Depends(get_session, scope=scope)

    @app.post("/own", status_code=201)
    async def place(tx: Annotated[AsyncTransaction, transaction(mq, session=own)]) -> int:
        await tx.session.execute(INSERT, {"id": 7})
        await tx.send("orders", {"id": 7})
        return 7

    return app


@pytest.mark.parametrize("scope", [None, "request"])
def test_a_session_that_would_commit_after_the_response_is_refused(
    mq: ReliableMQ, scope: Any
) -> None:
    refused = pytest.raises(UsageError, match=r'Depends\(get_session, scope="function"\)')
    with TestClient(own_shop(mq, scope=scope)) as client, refused:
        client.post("/own")
    assert kept(mq) == ([], 0)


@pytest.mark.usefixtures("fails")
@pytest.mark.parametrize(("scope", "begins"), [("function", True), (None, False)])
def test_a_session_that_commits_before_the_response_is_used(
    mq: ReliableMQ, scope: Any, begins: bool
) -> None:
    shop = own_shop(mq, scope=scope, begins=begins)
    with TestClient(shop, raise_server_exceptions=False) as client:
        assert client.post("/own").status_code == 500
        assert kept(mq) == ([], 0)
        assert client.post("/own").status_code == 201
    assert kept(mq) == ([7], 1)
