"""Flask: one transaction a request, with sessions of ours or of Flask-SQLAlchemy."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, abort, current_app, request, stream_with_context
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ
from reliable_mq.contrib.flask import FlaskMQ
from reliable_mq.errors import ConfigurationError, UsageError


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


def test_without_init_app_nothing_would_commit_so_it_is_refused(mq: ReliableMQ) -> None:
    messages = FlaskMQ(mq)
    with Flask("shop").test_request_context(), pytest.raises(UsageError, match=r"init_app\(app\)$"):
        _ = messages.tx
    with pytest.raises(UsageError, match=r"FlaskMQ\(Flask\): give it your ReliableMQ"):
        FlaskMQ(Flask("shop"))  # type: ignore[arg-type]


def test_an_application_has_one_extension(mq: ReliableMQ) -> None:
    app = Flask("shop")
    FlaskMQ(mq, app, health="")

    with pytest.raises(UsageError, match="has a FlaskMQ already"):
        FlaskMQ(mq, app)
    assert app.test_client().get("/health/live").status_code == 404


def test_the_transaction_of_a_request_is_refused_where_nothing_would_commit_it(
    mq: ReliableMQ,
) -> None:
    messages = FlaskMQ(mq)
    app = Flask("shop")
    refused: list[str] = []

    @app.after_request
    def send_late(response: Response) -> Response:
        with pytest.raises(UsageError) as late:
            messages.tx.send("orders", {})
        refused.append(str(late.value))
        return response

    messages.init_app(app)

    @app.get("/")
    def streamed() -> Response:
        def lines() -> Iterator[str]:
            with pytest.raises(UsageError) as late:
                messages.tx.send("orders", {})
            refused.append(str(late.value))
            yield "sent"

        return Response(stream_with_context(lines()))

    with pytest.raises(UsageError, match="no request is being handled"):
        _ = messages.tx
    with app.app_context(), pytest.raises(UsageError, match="no request is being handled"):
        _ = messages.tx
    assert app.test_client().get("/").text == "sent"
    assert len(refused) == 2
    assert all(each.startswith("the response is being sent") for each in refused)
    assert kept(mq) == ([], 0)


def test_requests_of_one_application_context_have_transactions_of_their_own(
    mq: ReliableMQ,
) -> None:
    """Given a test that pushes the application's context, as many fixtures do."""
    app = factory(mq, FlaskMQ(mq), with_db=False)

    with app.app_context():
        client = app.test_client()
        assert [client.post(f"/orders/{item}").status_code for item in ("tea", "rum")] == [201] * 2
    assert kept(mq) == (["tea", "rum"], 2)


@pytest.mark.parametrize("with_db", [False, True])
def test_a_view_that_raises_keeps_neither_whatever_its_error_handler_answers(
    mq: ReliableMQ, with_db: bool
) -> None:
    messages = FlaskMQ(mq, db=db if with_db else None)
    app = factory(mq, messages, with_db=with_db)

    @app.errorhandler(ValueError)
    def go_home(_error: ValueError) -> tuple[str, int]:
        messages.tx.session.add(Order(item="a note about the error"))
        return "see /", 302

    assert app.test_client().post("/orders/tea?status=no-number").status_code == 302
    assert kept(mq) == (["a note about the error"], 0)
    if with_db:
        with app.app_context():
            db.engine.dispose()


def test_an_explicit_block_commits_also_after_a_query(mq: ReliableMQ) -> None:
    messages = FlaskMQ(mq, db=db)
    app = factory(mq, messages, with_db=True)

    with app.app_context():
        db.session.execute(text("SELECT 1"))  # begins a transaction
        with messages.transaction() as tx:
            tx.session.add(Order(item="tea"))
            tx.send("orders", {})
        db.session.remove()
        db.engine.dispose()
    assert kept(mq) == (["tea"], 1)


@pytest.mark.parametrize("status", [201, 409])
def test_an_explicit_block_belongs_to_the_transaction_of_its_request(
    mq: ReliableMQ, status: int
) -> None:
    messages = FlaskMQ(mq, db=db)
    app = factory(mq, messages, with_db=True)

    @app.post("/both")
    def both() -> tuple[str, int]:
        db.session.execute(text("SELECT 1"))  # begins a transaction
        messages.tx.session.add(Order(item="tea"))
        with messages.transaction() as tx:
            tx.send("orders", {})
        return "", status

    assert app.test_client().post("/both").status_code == status
    assert kept(mq) == ((["tea"], 1) if status == 201 else ([], 0))
    with app.app_context():
        db.engine.dispose()


def test_an_async_consumer_says_at_once_what_it_lacks(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of its messages would become a dead letter."""
    monkeypatch.setitem(sys.modules, "asgiref", None)

    async def pay(order: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"pip install 'flask\[async\]'"):
        FlaskMQ(mq).consumer("orders", group="payments")(pay)


def test_a_consumer_is_told_to_send_in_its_own_session(tmp_path: Path) -> None:
    """Given Flask-SQLAlchemy, whose session is another transaction than that of the handler."""
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    mq.create_tables()
    messages = FlaskMQ(mq, db=db)
    refused: list[str] = []
    done = threading.Event()

    def in_a_block() -> None:
        with messages.transaction():
            pass

    @messages.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None:
        for send in (lambda: messages.tx.send("orders", {}), in_a_block):
            with pytest.raises(UsageError) as error:
                send()
            refused.append(str(error.value))
        done.set()

    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = mq.database.url
    db.init_app(app)
    messages.init_app(app)
    with mq:
        with mq.transaction() as tx:
            tx.send("orders", {"id": 7})
        assert done.wait(60)
    assert "no request is being handled" in refused[0]
    assert "mq.transaction() inside a handler" in refused[1]


def test_a_consumer_runs_in_the_application_and_commands_are_there(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    seen: list[Any] = []
    paid = threading.Semaphore(0)
    messages = FlaskMQ(mq)

    @messages.consumer("orders", group="payments")
    def pay(order: dict[str, int], session: Session) -> None:
        seen.append((current_app.name, order["id"], session.in_transaction()))
        paid.release()

    @messages.consumer("orders", group="mails")
    async def mail(order: dict[str, int]) -> None:
        seen.append((current_app.name, "mail", order["id"]))
        paid.release()

    app = Flask("shop")
    messages.init_app(app)
    told = app.test_cli_runner().invoke(args=["reliable-mq", "create-tables"])
    assert "rmq_message_stub" in told.output

    with mq:
        with messages.transaction() as tx:
            tx.send("orders", {"id": 7})
        assert paid.acquire(timeout=60)
        assert paid.acquire(timeout=60)
    assert sorted(seen, key=str) == [("shop", "mail", 7), ("shop", 7, True)]


@pytest.fixture
def kept_level() -> Iterator[None]:
    """Give the log its level back."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize("verb", ["run", "resend"])
@pytest.mark.usefixtures("kept_level")
def test_commands_write_the_log_and_have_its_options(
    verb: str, mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_at: object) -> None:
        logging.getLogger("reliable_mq.app").info("it works")

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has configured logging
    monkeypatch.setattr(ReliableMQ, "run", work)
    monkeypatch.setattr(ReliableMQ, "resend_forever", work)
    runner = factory(mq, FlaskMQ(mq), with_db=False).test_cli_runner()

    assert "INFO it works" in runner.invoke(args=["reliable-mq", verb]).output
    logging.getLogger().handlers.clear()
    told = runner.invoke(args=["reliable-mq", verb, "--log-format", "json"]).output
    assert json.loads(told)["message"] == "it works"
    logging.getLogger().handlers.clear()
    told = runner.invoke(args=["reliable-mq", verb, "--log-level", "warning"]).output
    assert told == ""
    told = runner.invoke(args=["reliable-mq", verb, "--log-level", "loud"]).output
    assert "'loud' is not one of 'debug', 'info'" in told
