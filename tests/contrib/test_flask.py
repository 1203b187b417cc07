"""Flask: one transaction a request, with sessions of ours or of Flask-SQLAlchemy."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, current_app, request
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.errors import UsageError


class Table(DeclarativeBase):
    """What the tables have in common."""


db = SQLAlchemy(model_class=Table)


class Order(db.Model):  # type: ignore[name-defined]
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", broker="127.0.0.1:1", database=f"sqlite:///{tmp_path / 'shop.db'}")
    made.create_tables()
    Table.metadata.create_all(made.database.engine)
    made.topic("orders", groups=["payments"])
    yield made
    made.close()


def factory(mq: ReliableMQ, messages: FlaskMQ, *, with_db: bool) -> Flask:
    """Return an application as a factory makes it."""
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = mq.database.url.render_as_string(hide_password=False)
    if with_db:
        db.init_app(app)
    messages.init_app(app)

    @app.post("/orders/<item>")
    def place(item: str) -> tuple[str, int]:
        order = Order(item=item)
        session = db.session if with_db else messages.tx.session
        if request.args.get("asks"):
            session.execute(text("SELECT 1"))  # begins the transaction of `db.session`
        messages.tx.session.add(order)
        messages.tx.session.flush()
        messages.tx.send("orders", {"id": order.id})
        if status := request.args.get("abort"):
            abort(int(status))
        return item, int(request.args.get("status", 201))

    @app.post("/explicit/<item>")
    def explicit(item: str) -> str:
        with messages.transaction() as tx:
            tx.session.add(Order(item=item))
            tx.send("orders", {})
        return item

    return app


@pytest.fixture(params=["own sessions", "Flask-SQLAlchemy"])
def client(request: pytest.FixtureRequest, mq: ReliableMQ) -> Iterator[FlaskClient]:
    with_db = request.param == "Flask-SQLAlchemy"
    app = factory(mq, FlaskMQ(mq, db=db if with_db else None), with_db=with_db)
    yield app.test_client()
    if with_db:
        with app.app_context():
            db.engine.dispose()


def kept(mq: ReliableMQ) -> tuple[list[str], int]:
    with mq.database.reading_engine.connect() as connection:
        orders = list(connection.execute(text("SELECT item FROM orders ORDER BY id")).scalars())
        stubs = connection.exec_driver_sql("SELECT count(*) FROM rmq_message_stub").scalar_one()
    return orders, stubs


@pytest.mark.parametrize("query", ["", "?asks=1"])
def test_order_and_message_are_one_commit(mq: ReliableMQ, client: FlaskClient, query: str) -> None:
    assert client.post(f"/orders/tea{query}").status_code == 201
    assert client.post("/explicit/rum").status_code == 200
    assert kept(mq) == (["tea", "rum"], 2)


@pytest.mark.parametrize("query", ["?abort=400", "?abort=500", "?status=409", "?status=500"])
def test_a_request_that_is_refused_keeps_neither(
    mq: ReliableMQ, client: FlaskClient, query: str
) -> None:
    assert client.post(f"/orders/tea{query}").status_code == int(query[-3:])
    assert kept(mq) == ([], 0)


def test_a_view_that_raises_keeps_neither(mq: ReliableMQ, client: FlaskClient) -> None:
    assert client.post("/orders/tea?status=no-number").status_code == 500
    assert kept(mq) == ([], 0)

    client.post("/orders/rum")
    assert kept(mq) == (["rum"], 1)


def test_a_client_gets_no_success_when_the_commit_fails(
    mq: ReliableMQ, client: FlaskClient
) -> None:
    def refuse(_session: Session) -> None:
        raise RuntimeError("the disk is full")

    event.listen(Session, "before_commit", refuse)
    try:
        assert client.post("/orders/tea").status_code == 500
    finally:
        event.remove(Session, "before_commit", refuse)
    assert kept(mq) == ([], 0)


def test_health_is_told(mq: ReliableMQ, client: FlaskClient) -> None:
    assert client.get("/health/live").status_code == 200
    assert client.get("/health/ready").json == {
        "status": "ok",
        "checks": {"database main": "ok"},
    }


def test_an_application_has_one_extension(mq: ReliableMQ) -> None:
    app = Flask("shop")
    FlaskMQ(mq, app, health="")

    with pytest.raises(UsageError, match="has a FlaskMQ already"):
        FlaskMQ(mq, app)
    assert app.test_client().get("/health/live").status_code == 404


def test_a_transaction_needs_a_request(mq: ReliableMQ) -> None:
    with pytest.raises(RuntimeError, match="outside of"):
        _ = FlaskMQ(mq).tx


def test_a_consumer_runs_in_the_application_and_commands_are_there(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    seen: list[Any] = []
    paid = threading.Event()
    messages = FlaskMQ(mq)

    @messages.consumer("orders", group="payments")
    def pay(order: dict[str, int], session: Session) -> None:
        seen.append((current_app.name, order["id"], session.in_transaction()))
        paid.set()

    app = Flask("shop")
    messages.init_app(app)
    told = app.test_cli_runner().invoke(args=["reliable-mq", "create-tables"])
    assert "rmq_message_stub" in told.output

    with mq:
        with messages.transaction() as tx:
            tx.send("orders", {"id": 7})
        assert paid.wait(60)
    assert seen == [("shop", 7, True)]
