"""A web application whose PostgreSQL is killed: 503 from both drivers, and 200 when it is back."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from reliable_mq import AsyncTransaction, ReliableMQ
from reliable_mq.contrib.fastapi import AnswerDatabaseAway, lifespan, transaction
from reliable_mq.testing.local_servers import LocalPostgres


@pytest.fixture
def server(server_directory: Path) -> Iterator[LocalPostgres]:
    """Start a PostgreSQL that the test may kill."""
    made = LocalPostgres(server_directory / "killed")
    made.start()
    yield made
    made.stop()


def shop(mq: ReliableMQ, driver: str, **connecting: float) -> FastAPI:
    url = mq.database.url.set(drivername=f"postgresql+{driver}")
    engine = create_async_engine(url, connect_args=connecting)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session

    app = FastAPI(lifespan=lifespan(mq))
    app.add_middleware(AnswerDatabaseAway)
    Own = Annotated[AsyncSession, Depends(get_session)]  # noqa: N806 - a type

    @app.post("/orders")
    async def place(
        db: Own,
        tx: Annotated[AsyncTransaction, transaction(mq, session=get_session)],
    ) -> None:
        await tx.send("orders", {})

    @app.get("/other")
    async def other() -> None:
        raise ConnectionRefusedError("of another server")

    return app


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_request_is_answered_503_while_the_database_is_away(
    server: LocalPostgres, driver: str
) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=server.url)
    mq.create_tables()
    mq.topic("orders", groups=["payments"])
    with TestClient(shop(mq, driver), raise_server_exceptions=False) as client:
        assert client.post("/orders").status_code == 200
        server.kill()
        away = [client.post("/orders") for _ in range(3)]  # a lost connection, then refused ones
        is_other = client.get("/other").status_code
        server.start()
        for _ in range(50):  # connections of the pool that were lost are told one by one
            back = client.post("/orders")
            if back.status_code == 200:
                break

    assert [(each.status_code, each.headers["retry-after"]) for each in away] == [(503, "5")] * 3
    assert is_other == 500, "an error of another connection is not the database's"
    assert back.status_code == 200


def test_a_server_starts_while_its_database_is_away(server: LocalPostgres) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=server.url)
    mq.create_tables()
    mq.topic("orders", groups=["payments"])
    server.kill()
    with TestClient(shop(mq, "asyncpg"), raise_server_exceptions=False) as client:
        away = client.post("/orders").status_code
        server.start()
        back = client.post("/orders").status_code

    assert (away, back) == (503, 200)


def test_a_database_that_hangs_is_away_after_the_timeout_of_asyncpg(server: LocalPostgres) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=server.url)
    mq.create_tables()
    mq.topic("orders", groups=["payments"])
    app = shop(mq, "asyncpg", command_timeout=0.5, timeout=0.5)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/orders").status_code == 200
        with mq.database.engine.connect() as connection:
            pids = list(connection.scalars(text("SELECT pid FROM pg_stat_activity")))
        try:
            for pid in (*pids, server.pid):
                os.kill(pid, SIGSTOP)
            hanging = client.post("/orders").status_code
        finally:
            for pid in (*pids, server.pid):
                os.kill(pid, SIGCONT)

    assert hanging == 503
