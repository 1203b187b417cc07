"""The console inside of applications of Starlette, FastAPI and Django, behind their own log-ins."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.test import Client, override_settings
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import field, look, start, state_of
from tests.contrib.django_project import project, set_up
from tests.contrib.test_django_admin import APPS, audit, parked, user
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import mount
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.contrib.django.console import staff
from reliable_mq.errors import ConfigurationError, UsageError

set_up()
RETRY = "stub-retry"


def who(request: Any) -> tuple[str, Role] | None:
    """Return who has logged in, as in docs/how-to/console.md."""
    name = request.scope.get("session", {}).get("user")
    return (name, Role.OPERATOR) if name else None


def starlette_app() -> Starlette:
    async def log_in(request: Request) -> PlainTextResponse:
        request.session["user"] = "vera"
        return PlainTextResponse("hello")

    sessions = Middleware(SessionMiddleware, secret_key="only for tests")
    return Starlette(routes=[Route("/login", log_in)], middleware=[sessions])


def fastapi_app() -> FastAPI:
    app = FastAPI()
    app.add_middleware(SessionMiddleware, secret_key="only for tests")

    @app.get("/login")
    def log_in(request: Request) -> str:
        request.session["user"] = "vera"
        return "hello"

    return app


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = ReliableMQ(
        "shop", database=f"sqlite:///{tmp_path}/s.db", broker=f"embedded:{tmp_path}/store"
    )
    made.create_tables()
    yield made
    made.close()


def at(client: TestClient, path: str) -> Any:
    return client.get(f"/mq{path}")


def in_mount(client: TestClient) -> TestClient:
    """Return a browser whose addresses begin at the console."""
    client.base_url = client.base_url.join("/mq/")
    return client


@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_starlette_and_fastapi_mount_it_behind_their_own_log_in(
    shop: ReliableMQ, make: Callable[[], Any]
) -> None:
    app = make()
    assert mount(app, "/mq", mq=shop, allow=who) is app
    with visitor(app) as client:
        assert at(client, "/").status_code == 403
        assert client.get("/login").text.strip('"') == "hello"
        page = at(client, "/stubs")
        assert page.status_code == 200
        assert "vera" in page.text
        assert 'href="/mq/topics"' in page.text
        assert at(client, "/static/console.css").status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        answer = client.post("/mq/do", data={"deed": RETRY, "scope": "all"})
        assert answer.status_code == 403  # a form without a token
        form = {"deed": RETRY, "scope": "all", "token": field(at(client, "/topics").text, "token")}
        assert client.post("/mq/do", data=form).status_code == 409
        assert client.post("/mq/do", data=form | {"deed": "stub-void"}).status_code == 403


class Wrapped:
    """A middleware for ASGI, as many are: it has no `mount`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


def lives(happened: list[str], kind: Callable[..., Any] = Starlette, *, starts: bool = True) -> Any:
    @asynccontextmanager
    async def life(_app: Any) -> AsyncIterator[dict[str, str]]:
        happened.append("application starts")
        if not starts:
            raise ValueError("no database")
        yield {"pool": "its own"}
        happened.append("application ends")

    return kind(lifespan=life)


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the list of what starts and ends."""
    found: list[str] = []
    monkeypatch.setattr(ConsoleSources, "close", lambda _self: found.append("console ends"))
    return found


def test_an_application_beside_it_starts_and_ends(shop: ReliableMQ, happened: list[str]) -> None:
    app = mount(Wrapped(lives(happened)), "/mq", mq=shop, allow=who)
    with visitor(app) as client:
        assert happened == ["application starts"]
        assert client.get("/mq/healthz").status_code == 200
    assert happened == ["application starts", "console ends", "application ends"]


@pytest.mark.parametrize("kind", [Starlette, FastAPI, Router])
def test_an_application_that_mounts_it_ends_it(
    shop: ReliableMQ, happened: list[str], kind: Callable[..., Any]
) -> None:
    async def own(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.state.pool)

    app = lives(happened, kind)
    app.add_route("/own", own)
    mount(app, "/mq", mq=shop, allow=who)
    with visitor(app) as client:
        assert happened == ["application starts"]
        assert client.get("/mq/healthz").status_code == 200
        assert client.get("/own").text == "its own"
    assert happened == ["application starts", "console ends", "application ends"]


@pytest.mark.parametrize("kind", [Starlette, lambda **life: Wrapped(Starlette(**life))])
def test_an_application_ends_as_usual_if_the_end_of_the_console_fails(
    shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Any]
) -> None:
    def fail(_self: Any) -> None:
        raise OSError("the broker is away")

    monkeypatch.setattr(ConsoleSources, "close", fail)
    happened: list[str] = []
    app = mount(lives(happened, kind), "/mq", mq=shop, allow=who)
    with pytest.raises(OSError, match="the broker is away"), visitor(app) as client:
        assert client.get("/mq/healthz").status_code == 200
    assert happened == ["application starts", "application ends"]


def test_two_consoles_in_an_application_end_with_it(shop: ReliableMQ, happened: list[str]) -> None:
    app = lives(happened)
    for path in ("/mq", "/other"):
        mount(app, path, mq=shop, allow=who)
    with visitor(app) as client:
        for path in ("/mq", "/other"):
            assert client.get(f"{path}/healthz").status_code == 200
    assert happened == ["application starts", *["console ends"] * 2, "application ends"]


def test_work_in_a_mounted_console_ends_with_the_application(shop: ReliableMQ) -> None:
    app = Starlette()
    mount(app, "/mq", mq=shop, allow=lambda _request: ("vera", Role.OPERATOR))

    @shop.consumer("orders", group="shipping")
    def ship(_order: dict[str, int]) -> None:
        """Is never called, as the application does not run: its stubs stay unconfirmed."""

    with shop.transaction() as tx:
        for number in range(3):
            tx.send("orders", {"order": number})
    name = "reliable-mq-console-work"
    with visitor(app) as client:
        browser = in_mount(client)
        preview = look(browser, RETRY, query={"status": "unconfirmed"})
        assert start(browser, preview, rate="1").status_code == 303
        assert [each for each in threading.enumerate() if each.name.startswith(name)]
    assert not [each for each in threading.enumerate() if each.name.startswith(name)]


def test_a_misspelt_option_of_a_mounted_console_is_told(shop: ReliableMQ) -> None:
    options: Any = {"allow": who, "trace_ulr": "https://traces.example/{trace_id}"}
    with pytest.raises(UsageError, match="did you mean trace_url"):
        mount(Starlette(), "/mq", mq=shop, **options)


def test_a_start_that_fails_is_told(shop: ReliableMQ, happened: list[str]) -> None:
    app = mount(Wrapped(lives(happened, starts=False)), "/mq", mq=shop, allow=who)
    with pytest.raises(ValueError, match="no database"), visitor(app):
        pass
    assert happened == ["application starts"]


async def raises(_scope: Any, receive: Any, _send: Any) -> None:
    await receive()
    raise ValueError("only HTTP")  # as Django does, before it has read anything


async def returns(_scope: Any, _receive: Any, _send: Any) -> None: ...


async def waits_for_no_end(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})


@pytest.mark.parametrize("app", [raises, returns, waits_for_no_end])
def test_an_application_without_start_and_end_is_passed_over(
    shop: ReliableMQ, happened: list[str], app: Any
) -> None:
    with visitor(mount(app, "/mq", mq=shop, allow=who)) as client:
        assert client.get("/mq/healthz").status_code == 200
        assert happened == []
    assert happened == ["console ends"]


@pytest.fixture
def django_shop(tmp_path: Path) -> Iterator[tuple[DjangoMQ, TestClient]]:
    """Give a project, and a browser at its ASGI application with the console."""
    with (
        project(f"sqlite:///{tmp_path / 'shop.db'}", *APPS) as mq,
        override_settings(ALLOWED_HOSTS=["testserver", "127.0.0.1"]),
    ):
        app = mount(get_asgi_application(), "/mq", mq=mq, allow=staff)
        with visitor(app) as client:
            yield mq, client


def logged_in(client: TestClient, browser: Client) -> TestClient:
    """Give a browser the session of another one."""
    client.cookies.set("sessionid", browser.cookies["sessionid"].value, domain="127.0.0.1")
    return client


def test_django_serves_it_beside_its_own_pages(django_shop: tuple[DjangoMQ, TestClient]) -> None:
    _, client = django_shop
    assert client.get("/admin/login/").status_code == 200
    assert client.get("/mqueue").status_code == 404
    assert client.get("/mq").headers["location"] == "/mq/"
    assert client.get("/mq/healthz").status_code == 200
    assert client.get("/mq/").status_code == 403
    client.cookies.set("sessionid", "x", domain="127.0.0.1")
    assert client.get("/mq/").status_code == 403


def test_the_staff_of_a_django_project_has_its_roles(
    django_shop: tuple[DjangoMQ, TestClient],
) -> None:
    mq, client = django_shop
    _, message_id = parked(mq)
    roles = {
        "viewer": user("vera"),
        "operator": user("otto", "settle_messages"),
        "admin": user("ada", is_superuser=True),
    }
    for role, browser in roles.items():
        page = logged_in(client, browser).get("/mq/stubs")
        assert page.status_code == 200
        assert f'class="role">{role}<' in page.text
    operator = in_mount(logged_in(client, roles["operator"]))
    assert look(operator, "stub-void").status_code == 403
    started = start(operator, look(operator, RETRY, ids=[message_id]))
    place = started.headers["location"]
    assert place.startswith("/mq/works/")
    until(lambda: state_of(operator, place.removeprefix("/mq"))["state"] == "ended")
    assert audit(mq) == [("otto", "stub retry", message_id, 1)]


def test_who_is_no_staff_or_has_left_does_not_get_in(
    django_shop: tuple[DjangoMQ, TestClient],
) -> None:
    from django.contrib.auth.models import User

    _, client = django_shop
    browser = user("vera")
    User.objects.filter(username="vera").update(is_staff=False)
    assert logged_in(client, browser).get("/mq/").status_code == 403
    User.objects.filter(username="vera").update(is_staff=True, is_active=False)
    assert client.get("/mq/").status_code == 403
    User.objects.filter(username="vera").update(is_active=True)
    assert client.get("/mq/").status_code == 200
    person = User.objects.get(username="vera")
    person.set_password("another")
    person.save()
    assert client.get("/mq/").status_code == 403  # the session ended with the password


@pytest.mark.parametrize("path", ["", "mq", "/mq/", "/"])
def test_a_place_is_a_path(shop: ReliableMQ, path: str) -> None:
    with pytest.raises(ConfigurationError, match="mount"):
        mount(Starlette(), path, mq=shop, allow=who)
