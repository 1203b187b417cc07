"""One shop in each framework: what its server is, and how it is started.

`POST /orders` writes an order and announces it. `POST /orders?die=1` dies by SIGKILL between the
COMMIT and the send. A worker, `reliable-mq run`, writes an effect for each order.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.child_process import LoggedProcess
from sqlalchemy import create_engine, text
from tests.contrib.asking import asked
from tests.waiting import SECONDS_MAX, until

from reliable_mq.testing.local_servers import free_port

PARTS = """
import os, signal
from sqlalchemy import text
from sqlalchemy.orm import Session
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")

@mq.consumer("orders", group="payments")
def pay(order: dict[str, int], session: Session) -> None:
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": order["id"]})

class DiesBeforeSending:
    def accept_committed(self, stubs):
        os.kill(os.getpid(), signal.SIGKILL)

def die_before_the_send():
    mq._outboxes.of("main", False).outbox._relay = DiesBeforeSending()

INSERT = text("INSERT INTO orders (item) VALUES ('tea') RETURNING id")
"""
FASTAPI = """
from typing import Annotated
from fastapi import FastAPI
from reliable_mq import AsyncTransaction, Transaction
from reliable_mq.contrib.fastapi import health_router, lifespan, sync_transaction, transaction
from shop_parts import INSERT, die_before_the_send, mq

app = FastAPI(lifespan=lifespan(mq))
app.include_router(health_router(mq))

@app.post("/orders", status_code=201)
async def place(tx: Annotated[AsyncTransaction, transaction(mq)], die: bool = False) -> int:
    if die:
        die_before_the_send()
    number = (await tx.session.execute(INSERT)).scalar_one()
    await tx.send("orders", {"id": number})
    return number

@app.post("/sync/orders", status_code=201)
def place_in_a_thread(tx: Annotated[Transaction, sync_transaction(mq)]) -> int:
    number = tx.session.execute(INSERT).scalar_one()
    tx.send("orders", {"id": number})
    return number
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from reliable_mq.contrib.starlette import health_routes, lifespan
from shop_parts import INSERT, die_before_the_send, mq

async def place(request):
    if request.query_params.get("die"):
        die_before_the_send()
    async with mq.transaction() as tx:
        number = (await tx.session.execute(INSERT)).scalar_one()
        await tx.send("orders", {"id": number})
    return JSONResponse(number, 201)

routes = [Route("/orders", place, methods=["POST"]), *health_routes(mq)]
app = Starlette(routes=routes, lifespan=lifespan(mq))
"""
LITESTAR = """
from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from reliable_mq import AsyncTransaction
from reliable_mq.contrib.litestar import LitestarMQ
from shop_parts import INSERT, die_before_the_send, mq

@post("/orders")
async def place(tx: NamedDependency[AsyncTransaction], die: FromQuery[bool] = False) -> int:
    if die:
        die_before_the_send()
    number = (await tx.session.execute(INSERT)).scalar_one()
    await tx.send("orders", {"id": number})
    return number

app = Litestar([place], plugins=[LitestarMQ(mq)])
"""
FLASK = """
from flask import Flask, jsonify, request
from reliable_mq.contrib.flask import FlaskMQ
from shop_parts import INSERT, die_before_the_send, mq

messages = FlaskMQ(mq)

def create_app():
    app = Flask(__name__)
    messages.init_app(app)

    @app.post("/orders")
    def place():
        if request.args.get("die"):
            die_before_the_send()
        number = messages.tx.session.execute(INSERT).scalar_one()
        messages.tx.send("orders", {"id": number})
        return jsonify(number), 201

    return app
"""
DJANGO_SETTINGS = """
import os
from sqlalchemy import make_url
url = make_url(os.environ["SHOP_DATABASE"])
SECRET_KEY = "only for tests"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop_django"
INSTALLED_APPS = ["reliable_mq.contrib.django", "shop_app"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username,
    "HOST": url.host, "PORT": str(url.port),
}}
RELIABLE_MQ = {"NAME": "shop"}
USE_TZ = True
"""
DJANGO = """
import os, signal
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import JsonResponse
from django.urls import path
from reliable_mq.contrib.django import mq
from reliable_mq.contrib.health import readiness

class DiesBeforeSending:
    def accept_committed(self, stubs):
        os.kill(os.getpid(), signal.SIGKILL)

def place(request):
    if request.GET.get("die"):
        mq._outboxes.of("main", False).outbox._relay._relay = DiesBeforeSending()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (item) VALUES ('tea') RETURNING id")
            (number,) = cursor.fetchone()
        mq.send("orders", {"id": number})
    return JsonResponse(number, safe=False, status=201)

def ready(request):
    health = readiness(mq)
    return JsonResponse(health.body, status=health.status)

urlpatterns = [path("orders", place), path("health/ready", ready)]
application = get_wsgi_application()
"""
DJANGO_CONSUMERS = """
from django.db import connection
from reliable_mq.contrib.django import mq

@mq.consumer("orders", group="payments")
def pay(order: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", [order["id"]])
"""
UVICORN = ("-m", "uvicorn", "--host", "127.0.0.1", "--log-level", "warning", "--port", "{port}")
GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--worker-tmp-dir", "/tmp")
WORKER = ("-m", "reliable_mq.cli.main")
MANAGE = ("-m", "django")
DJANGO_FILES = {
    "shop_settings.py": DJANGO_SETTINGS,
    "shop_django.py": DJANGO,
    "shop_app/__init__.py": "",
    "shop_app/consumers.py": DJANGO_CONSUMERS,
}


class WebShop(NamedTuple):
    """A framework with its server."""

    files: dict[str, str]
    server: tuple[str, ...]
    worker: tuple[str, ...] = (*WORKER, "run", "shop_parts:mq")
    resend: tuple[str, ...] = (*WORKER, "resend", "shop_parts:mq")
    tables: tuple[str, ...] = (*WORKER, "create-tables", "shop_parts:mq")
    listing: tuple[str, ...] = (*WORKER, "stub", "list", "--json", "--app", "shop_parts:mq")
    sync: str = "/orders"
    restarts: bool = False  # another process restarts the one that was killed


_PARTS = {"shop_parts.py": PARTS}
_OF_DJANGO = {
    "worker": (*MANAGE, "reliable_mq", "run", "--processes", "2"),
    "resend": (*MANAGE, "reliable_mq", "resend"),
    "tables": (*MANAGE, "migrate"),
    "listing": (*MANAGE, "reliable_mq", "stub", "list", "--json"),
}
SHOPS = {
    "fastapi": WebShop(
        _PARTS | {"shop_web.py": FASTAPI}, (*UVICORN, "shop_web:app"), sync="/sync/orders"
    ),
    "starlette": WebShop(_PARTS | {"shop_web.py": STARLETTE}, (*UVICORN, "shop_web:app")),
    "litestar": WebShop(_PARTS | {"shop_web.py": LITESTAR}, (*UVICORN, "shop_web:app")),
    "flask": WebShop(
        _PARTS | {"shop_web.py": FLASK}, (*GUNICORN, "shop_web:create_app()"), restarts=True
    ),
    "flask, loaded before the fork": WebShop(
        _PARTS | {"shop_web.py": FLASK},
        (*GUNICORN, "--preload", "shop_web:create_app()"),
        restarts=True,
    ),
    "django by gunicorn": WebShop(
        DJANGO_FILES,
        (*GUNICORN, "--preload", "shop_django:application"),
        restarts=True,
        **_OF_DJANGO,  # type: ignore[arg-type]
    ),
    "django by runserver": WebShop(
        DJANGO_FILES,
        (*MANAGE, "runserver", "--noreload", "127.0.0.1:{port}"),
        **_OF_DJANGO,  # type: ignore[arg-type]
    ),
}


class WebStage:
    """A directory with a shop, and the processes that run it."""

    def __init__(self, shop: WebShop, directory: Path, database: str, python: str = "") -> None:
        self._shop = shop
        self._directory = directory
        self._database = database
        self._python = python or sys.executable
        self._port, self._broker_port = free_port(), free_port()
        for name, source in shop.files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(source)
        self._environment = {
            "RELIABLE_MQ_DATABASE": database,
            "RELIABLE_MQ_BROKER": f"127.0.0.1:{self._broker_port}",
            "SHOP_DATABASE": database,
            "DJANGO_SETTINGS_MODULE": "shop_settings",
            "PYTHONPATH": str(directory),
        }
        self.sql("CREATE TABLE orders (id SERIAL, item TEXT)")
        self.sql("CREATE TABLE effects (id INT)")

    @contextmanager
    def running(self, name: str, *words: str) -> Iterator[LoggedProcess]:
        """Run a process until the block ends, then ask it to stop."""
        process = LoggedProcess(
            [self._python, *(each.format(port=self._port) for each in words)],
            self._directory / f"{name}.log",
            environment=self._environment,
        )
        try:
            yield process
            if process.child.poll() is None:
                process.stop()
        finally:
            if process.child.poll() is None:
                process.kill()

    def create_tables(self) -> None:
        self.told("tables", *self._shop.tables)

    def listed(self) -> int:
        """Return how many stubs the command line lists."""
        return self.told("listing", *self._shop.listing).count('"message_id"')

    def told(self, name: str, *words: str) -> str:
        """Run a command to its end; return what it printed."""
        with self.running(name, *words) as process:
            assert process.child.wait(SECONDS_MAX) == 0, process.output()
            return process.output()

    @contextmanager
    def broker(self) -> Iterator[None]:
        ports = ("--port", "0", "--namesrv-port", str(self._broker_port))
        words = (*WORKER, "broker", "--store", str(self._directory / "store"), *ports)
        with self.running("broker", *words) as process:
            process.wait_for("^ready ", SECONDS_MAX)
            yield

    @contextmanager
    def web(self) -> Iterator[LoggedProcess]:
        """Serve the shop; it is ready when the block begins."""
        with self.running("web", *self._shop.server) as process:
            until(
                lambda: self.asked("GET", "/health/ready")[0] == 200,
                process.output,
                possible=lambda: process.child.poll() is None,
            )
            yield process

    @contextmanager
    def workers(self) -> Iterator[None]:
        """Run a worker and the scheduler."""
        with self.running("worker", *self._shop.worker), self.running("resend", *self._shop.resend):
            yield

    def asked(self, method: str, path: str) -> tuple[int, Any]:
        """Return status and JSON; the status is 0 when there was no answer."""
        return asked(self._port, method, path)

    def sql(self, statement: str) -> list[Any]:
        engine = create_engine(self._database)
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            rows = [tuple(row) for row in result.all()] if result.returns_rows else []
        engine.dispose()
        return rows


def a_killed_server_loses_and_doubles_nothing(stage: WebStage, shop: WebShop) -> None:
    """Place orders; kill the server between a COMMIT and its send; then count the effects."""
    stage.create_tables()
    with stage.broker():
        with stage.web() as web:
            assert stage.asked("POST", "/orders") == (201, 1)
            assert stage.asked("POST", shop.sync) == (201, 2)
            assert stage.asked("POST", "/orders?die=1")[0] == 0
            if not shop.restarts:
                until(lambda: web.child.poll() is not None)
                assert web.child.returncode == -9
        assert stage.sql("SELECT count(*) FROM orders") == [(3,)]
        with stage.web():
            assert stage.asked("POST", "/orders") == (201, 4)
            with stage.workers():
                until(lambda: not stage.sql("SELECT 1 FROM rmq_message_stub WHERE status <> 1"))
        assert stage.listed() == 4
        assert stage.sql("SELECT id FROM effects ORDER BY id") == [(1,), (2,), (3,), (4,)]
