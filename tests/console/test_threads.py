"""A source that hangs takes no threads and not all connections of the application."""

import asyncio
import threading
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import mount, pages, sources
from reliable_mq.console.asyncio_threads import THREADS
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.errors import Unavailable


def _own(_request: Request) -> Response:
    return PlainTextResponse("the application answers")


def test_pages_that_wait_delay_no_page_of_the_application_and_no_probe(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[str] = []
    may_answer = threading.Event()

    def search(_sources: ConsoleSources, text: str) -> Any:
        waiting.append(text)
        may_answer.wait(300.0)
        raise Unavailable("it was away")

    monkeypatch.setattr(pages, "search", search)
    app = Starlette(routes=[Route("/own", _own)])
    mount(app, "/mq", mq=mq, allow=lambda _request: ("ada", Role.VIEWER))

    async def visit() -> list[int]:
        transport = ASGITransport(app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://shop.example") as client:
            hanging = [
                asyncio.create_task(client.get(f"/mq/find?q={number}")) for number in range(THREADS)
            ]
            await asyncio.to_thread(until, lambda: len(waiting) == THREADS)
            places = ("/own", "/mq/healthz", "/mq/static/console.css")
            try:
                answers = [await asyncio.wait_for(client.get(each), 60.0) for each in places]
            finally:
                may_answer.set()
                await asyncio.gather(*hanging)
            return [each.status_code for each in answers]

    assert asyncio.run(visit()) == [200, 200, 200]


def test_pages_take_at_most_half_of_the_connections(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "STATEMENT_SECONDS", 0.0)
    made = ConsoleSources(mq)
    most = mq.database.connections_max // 2
    places = [made.place("main") for _ in range(most)]
    for each in places:
        each.__enter__()
    with pytest.raises(Unavailable, match="other pages wait"), made.reading("main"):
        pass
    for each in places:
        each.__exit__(None, None, None)
    with made.place("main"):
        pass
