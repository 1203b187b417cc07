"""A user's small project over every framework passes `mypy --strict`, and its mistakes do not."""

import sys
from pathlib import Path

import pytest
from tests.waiting import run_process

SHOP = """
from typing import Annotated

from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post
from litestar.di import NamedDependency
from sqlalchemy.orm import Session

from reliable_mq import AsyncTransaction, ReliableMQ, Transaction
from reliable_mq.contrib.fastapi import health_router, lifespan, sync_transaction, transaction
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.contrib.health import Health, readiness
from reliable_mq.contrib.litestar import LitestarMQ
from reliable_mq.contrib.starlette import health_routes

mq = ReliableMQ("shop", broker="embedded:x", database="sqlite:///shop.db")
app = FastAPI(lifespan=lifespan(mq))
app.include_router(health_router(mq))
Tx = Annotated[AsyncTransaction, transaction(mq)]


@app.post("/orders")
async def place(tx: Tx) -> str:
    return await tx.send("orders", {"id": 1}, key="1")


@app.post("/sync")
def place_sync(tx: Annotated[Transaction, sync_transaction(mq)]) -> str:
    return tx.send("orders", {"id": 1})


messages = FlaskMQ(mq, Flask("shop"))


@messages.consumer("orders", group="a")
def take(order: dict[str, int], session: Session) -> None: ...


@post("/orders")
async def place_litestar(tx: NamedDependency[AsyncTransaction]) -> str:
    return await tx.send("orders", {})


star = Litestar([place_litestar], plugins=[LitestarMQ(mq)])
routes = health_routes(mq)
health: Health = readiness(mq)
flask_id: str = messages.tx.send("orders", {})
"""
DJANGO = """
from reliable_mq.contrib.django import mq


@mq.consumer("orders", group="payments")
def take_payment(placed: dict[str, int]) -> None: ...


def place() -> str:
    mq.send_many("orders", [{}], key=lambda order: "x")
    with mq.transaction() as tx:
        tx.send("orders", {"id": 1}, tag="placed")
    return mq.send("orders", {"id": 1}, using="default", key="4711")
"""
WRONG = {
    'from reliable_mq.contrib.django import mq\nnumber: int = mq.send("orders", {})': "assignment",
    'from reliable_mq.contrib.django import mq\nmq.send("orders", {}, kee="x")': "call-arg",
    "from reliable_mq.contrib.fastapi import lifespan\nlifespan(7)": "arg-type",
    "from reliable_mq.contrib.flask import FlaskMQ\nFlaskMQ(app=7)": "call-arg",
}


@pytest.mark.processes
def test_a_project_passes_and_each_mistake_is_found(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "django_shop.py").write_text(DJANGO)
    for place, source in enumerate(WRONG):
        (tmp_path / f"wrong_{place}.py").write_text(source)

    told = run_process(
        [sys.executable, "-m", "mypy", "--strict", "--show-error-codes", "."],
        timeout=300,
        capture_output=True,
        cwd=tmp_path,
    ).stdout

    errors = [line for line in told.splitlines() if ": error:" in line]
    assert [line for line in errors if not line.startswith("wrong_")] == []
    for place, code in enumerate(WRONG.values()):
        of_file = [line for line in errors if line.startswith(f"wrong_{place}.py")]
        assert of_file, (place, told)
        assert f"[{code}]" in of_file[0]
