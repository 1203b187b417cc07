"""Litestar: one transaction a request, committed before the client gets its answer."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from litestar.testing import TestClient
from sqlalchemy import event
from sqlalchemy.orm import Session
from tests.contrib.kept_orders import INSERT, kept

from reliable_mq import AsyncTransaction, ReliableMQ
from reliable_mq.contrib.litestar import LitestarMQ


@post("/orders/{number:int}")
async def place(
    number: FromPath[int], tx: NamedDependency[AsyncTransaction], refuse: FromQuery[int] = 0
) -> int:
    """Place an order."""
    await tx.session.execute(INSERT, {"id": number})
    await tx.send("orders", {"id": number})
    if refuse:
        raise HTTPException(status_code=refuse)
    return number


@pytest.fixture
def client(mq: ReliableMQ) -> Iterator[TestClient[Litestar]]:
    app = Litestar([place], plugins=[LitestarMQ(mq)])
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made


def test_order_and_message_are_one_commit(mq: ReliableMQ, client: TestClient[Litestar]) -> None:
    assert client.post("/orders/7").status_code == 201
    assert kept(mq) == ([7], 1)


@pytest.mark.parametrize("status", [400, 500])
def test_a_handler_that_raises_keeps_neither(
    mq: ReliableMQ, client: TestClient[Litestar], status: int
) -> None:
    assert client.post(f"/orders/7?refuse={status}").status_code == status
    assert kept(mq) == ([], 0)


def test_a_client_gets_no_success_when_the_commit_fails(
    mq: ReliableMQ, client: TestClient[Litestar]
) -> None:
    def refuse(_session: Session) -> None:
        raise RuntimeError("the disk is full")

    event.listen(Session, "before_commit", refuse)
    try:
        assert client.post("/orders/7").status_code == 500
    finally:
        event.remove(Session, "before_commit", refuse)
    assert kept(mq) == ([], 0)


def test_a_result_that_cannot_be_written_keeps_nothing(mq: ReliableMQ) -> None:
    @post("/unanswerable")
    async def answer_wrongly(tx: NamedDependency[AsyncTransaction]) -> Any:
        await tx.session.execute(INSERT, {"id": 7})
        await tx.send("orders", {"id": 7})
        return object()

    app = Litestar([answer_wrongly], plugins=[LitestarMQ(mq)])
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/unanswerable").status_code == 500
    assert kept(mq) == ([], 0)


def test_health_is_told(client: TestClient[Litestar]) -> None:
    assert client.get("/health/live").json() == {"status": "ok", "checks": {"event loop": "ok"}}
    assert client.get("/health/ready").json()["checks"] == {"database main": "ok"}


def test_an_embedded_broker_consumes_in_the_server(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    mq.create_tables()
    paid = threading.Event()

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None:
        paid.set()

    @post("/announce")
    async def announce(tx: NamedDependency[AsyncTransaction]) -> None:
        await tx.send("orders", {"id": 1})

    with TestClient(Litestar([announce], plugins=[LitestarMQ(mq, health="")])) as client:
        assert client.post("/announce").status_code == 201
        assert paid.wait(60)
        assert client.get("/health/live").status_code == 404
