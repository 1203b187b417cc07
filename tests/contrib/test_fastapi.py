"""FastAPI: one transaction a request, committed before the client gets its answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import pytest
import sqlalchemy.exc
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.testclient import TestClient as StarletteClient
from tests.contrib.kept_orders import INSERT, kept

from reliable_mq import AsyncTransaction, ReliableMQ, Transaction
from reliable_mq.app import thread_health as health
from reliable_mq.contrib.fastapi import health_router, lifespan, sync_transaction, transaction
from reliable_mq.contrib.starlette import health_routes
from reliable_mq.errors import ConfigurationError, UsageError


def shop(mq: ReliableMQ) -> FastAPI:
    app = FastAPI(lifespan=lifespan(mq))
    tx_of_request = transaction(mq)

    @app.post("/orders/{number}", status_code=201)
    async def place(
        number: int, tx: Annotated[AsyncTransaction, tx_of_request], refuse: int = 0
    ) -> int:
        await tx.session.execute(INSERT, {"id": number})
        await tx.send("orders", {"id": number})
        if refuse:
            raise HTTPException(refuse)
        return number

    @app.post("/sync/{number}", status_code=201)
    def place_in_a_thread(
        number: int, tx: Annotated[Transaction, sync_transaction(mq)], refuse: int = 0
    ) -> int:
        tx.session.execute(INSERT, {"id": number})
        tx.send("orders", {"id": number})
        if refuse:
            raise HTTPException(refuse)
        return number

    @app.post("/unanswerable/{number}", response_model=int)
    async def answer_wrongly(number: int, tx: Annotated[AsyncTransaction, tx_of_request]) -> Any:
        await tx.session.execute(INSERT, {"id": number})
        return "no number"

    @app.post("/twice/{number}")
    async def ask_twice(
        first: Annotated[AsyncTransaction, tx_of_request],
        second: Annotated[AsyncTransaction, transaction(mq)],
    ) -> bool:
        return first is second

    return app


@pytest.fixture
def client(mq: ReliableMQ) -> Iterator[TestClient]:
    with TestClient(shop(mq), raise_server_exceptions=False) as made:
        yield made


@pytest.mark.parametrize("path", ["/orders/7", "/sync/7"])
def test_order_and_message_are_one_commit(mq: ReliableMQ, client: TestClient, path: str) -> None:
    assert client.post(path).status_code == 201
    assert kept(mq) == ([7], 1)


@pytest.mark.parametrize("path", ["/orders/7", "/sync/7"])
@pytest.mark.parametrize("status", [400, 500])
def test_an_endpoint_that_raises_keeps_neither(
    mq: ReliableMQ, client: TestClient, path: str, status: int
) -> None:
    assert client.post(f"{path}?refuse={status}").status_code == status
    assert kept(mq) == ([], 0)


def test_a_result_that_is_no_response_keeps_nothing(mq: ReliableMQ, client: TestClient) -> None:
    assert client.post("/unanswerable/7").status_code == 500
    assert kept(mq) == ([], 0)


@pytest.mark.parametrize("path", ["/orders/7", "/sync/7"])
def test_a_client_gets_no_success_when_the_commit_fails(
    mq: ReliableMQ, client: TestClient, path: str
) -> None:
    def refuse(_session: Session) -> None:
        raise RuntimeError("the disk is full")

    event.listen(Session, "before_commit", refuse)
    try:
        assert client.post(path).status_code == 500
    finally:
        event.remove(Session, "before_commit", refuse)
    assert kept(mq) == ([], 0)


def test_all_of_one_request_get_one_transaction(client: TestClient) -> None:
    assert client.post("/twice/7").json() is True


def test_the_same_session_is_the_same_transaction(mq: ReliableMQ) -> None:
    def own_session() -> Session:
        return mq.database.session()

    def function_of(dependency: Any) -> Any:
        return dependency.dependency

    one, same = (function_of(transaction(mq, session=Depends(own_session))) for _ in range(2))
    other = function_of(transaction(mq, session=Depends(own_session, use_cache=False)))

    assert one is same is function_of(transaction(mq, session=own_session))
    assert other is not one


@pytest.mark.parametrize("begins", [False, True])
def test_messages_are_sent_in_the_session_of_the_applications_own_dependency(
    mq: ReliableMQ, begins: bool
) -> None:
    async def own_session() -> AsyncIterator[AsyncSession]:
        async with mq.database.async_session() as session:
            if not begins:
                yield session
                return
            async with session.begin():
                yield session

    app = FastAPI(lifespan=lifespan(mq))
    own = Depends(own_session, scope="function") if begins else Depends(own_session)

    @app.post("/orders/{number}")
    async def place(
        number: int,
        session: Annotated[AsyncSession, own],
        tx: Annotated[AsyncTransaction, transaction(mq, session=own)],
    ) -> bool:
        await session.execute(INSERT, {"id": number})
        await tx.send("orders", {"id": number})
        return tx.session is session

    with TestClient(app) as client:
        assert client.post("/orders/7").json() is True
    assert kept(mq) == ([7], 1)


def shop_that_asks_who_calls(mq: ReliableMQ) -> FastAPI:
    """Return a shop in which another dependency has queried the session before."""

    async def own_session() -> AsyncIterator[AsyncSession]:
        async with mq.database.async_session() as session:
            yield session

    async def customer(session: Annotated[AsyncSession, Depends(own_session)]) -> None:
        await session.execute(text("SELECT 1"))

    def own_sync_session() -> Iterator[Session]:
        with mq.database.session() as session:
            yield session

    def sync_customer(session: Annotated[Session, Depends(own_sync_session)]) -> None:
        session.execute(text("SELECT 1"))

    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/orders/{number}", dependencies=[Depends(customer)])
    async def place(
        number: int,
        tx: Annotated[AsyncTransaction, transaction(mq, session=own_session)],
        refuse: int = 0,
    ) -> None:
        await tx.session.execute(INSERT, {"id": number})
        await tx.send("orders", {"id": number})
        if refuse:
            raise HTTPException(refuse)

    @app.post("/sync/{number}", dependencies=[Depends(sync_customer)])
    def place_in_a_thread(
        number: int,
        tx: Annotated[Transaction, sync_transaction(mq, session=own_sync_session)],
        refuse: int = 0,
    ) -> None:
        tx.session.execute(INSERT, {"id": number})
        tx.send("orders", {"id": number})
        if refuse:
            raise HTTPException(refuse)

    return app


@pytest.mark.parametrize("path", ["/orders/7", "/sync/7"])
def test_a_query_of_another_dependency_leaves_the_commit_to_the_request(
    mq: ReliableMQ, path: str
) -> None:
    with TestClient(shop_that_asks_who_calls(mq)) as client:
        assert client.post(f"{path}?refuse=409").status_code == 409
        assert kept(mq) == ([], 0)
        assert client.post(path).status_code == 200
    assert kept(mq) == ([7], 1)


def test_liveness_is_told_while_every_thread_of_the_server_waits(mq: ReliableMQ) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    @asynccontextmanager
    async def with_one_thread(_app: Any) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        yield

    def wait() -> None:
        waits.set()
        goes_on.wait(60)

    app = FastAPI(
        lifespan=lifespan(mq, with_one_thread), routes=health_routes(mq, prefix="/starlette")
    )
    app.include_router(health_router(mq))
    app.get("/wait")(wait)
    with TestClient(app) as client:
        other = threading.Thread(target=client.get, args=("/wait",))
        other.start()
        assert waits.wait(60)
        answers = [client.get(f"/{place}/live").status_code for place in ("health", "starlette")]
        was_waiting = other.is_alive()
        goes_on.set()
        other.join()
    assert answers == [200, 200]
    assert was_waiting


def test_liveness_and_readiness_are_told_with_a_reason(
    mq: ReliableMQ, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.app.include_router(health_router(mq))  # type: ignore[attr-defined]

    assert client.get("/health/live").json() == {"status": "ok", "checks": {"event loop": "ok"}}
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"database main": "ok"})

    Path(mq.database.url.database or "").unlink()
    mq.database.close()
    ready = client.get("/health/ready")
    assert ready.status_code == 503
    assert "there is no file" in ready.json()["checks"]["database main"]


def test_a_database_that_hangs_is_asked_by_one_thread_only(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(mq.database, "check_file", goes_on.wait)
    before = threading.active_count()

    answers = [health.readiness(mq) for _ in range(5)]

    assert threading.active_count() == before + 1
    assert {each.status for each in answers} == {503}
    assert answers[0].checks == {"database main": "no answer within 0.01 s"}
    goes_on.set()


def test_two_databases_that_hang_are_waited_for_together(
    mq: ReliableMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Hangs:
        def result(self, timeout: float) -> str:
            waited.append(timeout)
            raise TimeoutError

    both = ReliableMQ(
        "shop",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
        databases={"billing": f"sqlite:///{tmp_path / 'billing.db'}"},
    )
    monkeypatch.setattr(health, "_ask", lambda _database: Hangs())
    monkeypatch.setattr(health, "monotonic", lambda: 100.0 + sum(waited))

    assert health.readiness(both).status == 503
    assert waited == [2.0, 0.0]
    both.close()


def test_starlette_has_the_same_endpoints_and_lifespan(mq: ReliableMQ) -> None:
    app = Starlette(routes=health_routes(mq), lifespan=lifespan(mq))

    with StarletteClient(app) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").json()["checks"] == {"database main": "ok"}


def test_an_own_lifespan_runs_while_mq_is_open_and_its_state_is_passed_on(mq: ReliableMQ) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, int]]:
        async with mq.transaction() as tx:
            await tx.send("orders", {"id": 1})
        seen.append(app)
        yield {"answer": 42}
        seen.append("ended")

    async def scene() -> None:
        async with lifespan(mq, own)("the app") as state:
            assert state == {"answer": 42}

    asyncio.run(scene())
    assert seen == ["the app", "ended"]


def test_a_server_without_tables_does_not_start(tmp_path: Path) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=f"sqlite:///{tmp_path / 'none.db'}")

    with pytest.raises(ConfigurationError, match=r"call mq.create_tables\(\)"):
        TestClient(FastAPI(lifespan=lifespan(mq))).__enter__()


@pytest.mark.parametrize("made", [transaction, sync_transaction])
def test_a_dependency_within_another_depends_is_refused(mq: ReliableMQ, made: Any) -> None:
    """It would lose its scope, and so commit after the response."""

    dependency = Depends(made(mq))

    async def place(tx: Annotated[Any, dependency]) -> None: ...

    with pytest.raises(UsageError, match=r"write Annotated\[AsyncTransaction, transaction\(mq\)\]"):
        FastAPI().post("/orders")(place)


def test_consume_without_consumers_is_refused(mq: ReliableMQ) -> None:
    with pytest.raises(UsageError, match="has no consumers"):
        TestClient(FastAPI(lifespan=lifespan(mq, consume=True))).__enter__()


def test_an_embedded_broker_consumes_in_the_server_and_can_be_opened_again(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    mq.create_tables()
    paid = threading.Semaphore(0)

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None:
        paid.release()

    app = FastAPI(lifespan=lifespan(mq))

    @app.post("/orders")
    async def place(tx: Annotated[AsyncTransaction, transaction(mq)]) -> None:
        await tx.send("orders", {"id": 1})

    for _ in range(2):
        with TestClient(app) as client:
            client.post("/orders").raise_for_status()
            assert paid.acquire(timeout=60)


def test_the_recipe_of_the_page_answers_503_while_the_database_is_away() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fastapi.md").read_text()
    recipe = page.partition("## A database that is away")[2].partition("```python\n")[2]
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database="postgresql+psycopg://a@127.0.0.1:1/b")
    app = FastAPI()

    @app.post("/orders")
    async def place(tx: Annotated[AsyncTransaction, transaction(mq)]) -> None:
        await tx.send("orders", {"id": 1})

    names = {"app": app, "JSONResponse": JSONResponse}
    exec(recipe.partition("```")[0], {**vars(sqlalchemy.exc), **names})
    answer = TestClient(app).post("/orders")

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
