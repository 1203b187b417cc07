"""Applications whose consoles the tests visit, and a browser that follows no redirect.

`mq` has no broker that can be asked; `shop` is at a real one.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from starlette.testclient import TestClient
from tests.console.oidc_provider import Provider, served

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app

Browse = Callable[..., TestClient]
_numbers = itertools.count(1)


def visitor(app: Any, peer: str = "127.0.0.1") -> TestClient:
    """Return a browser at a machine; it follows no redirect."""
    return TestClient(
        app, base_url="http://127.0.0.1", client=(peer, 50_000), follow_redirects=False
    )


@pytest.fixture
def mq(postgres_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    """Give an application with tables and a handler. No broker can be asked."""
    made = ReliableMQ("shop", database=postgres_url, broker=f"embedded:{tmp_path}/store")
    made.topic("orders", groups=["billing"])

    @made.consumer("orders", group="billing")
    def pay(_order: dict[str, Any]) -> None: ...

    made.create_tables()
    yield made
    made.close()


@pytest.fixture
def browse(mq: ReliableMQ) -> Iterator[Browse]:
    """Give what opens the console of an application, by default of `mq`.

    A console runs until the test ends: else each request would start a loop of its own.
    """
    with ExitStack() as opened:

        def browse(application: ReliableMQ = mq, **options: Any) -> TestClient:
            return opened.enter_context(visitor(console_app(application, **options)))

        yield browse


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        yield running.name_server_address


@pytest.fixture
def group() -> str:
    return f"billing-{next(_numbers)}"


@pytest.fixture
def shop(broker: str, group: str, postgres_url: str) -> Iterator[ReliableMQ]:
    """Give an application at the broker."""
    made = ReliableMQ("shop", database=postgres_url, broker=broker)
    made.topic("orders", groups=[group])

    @made.consumer("orders", group=group)
    def pay(_order: dict[str, Any]) -> None: ...

    made.create_tables()
    yield made
    made.close()


@pytest.fixture
def client(shop: ReliableMQ) -> Iterator[TestClient]:
    with visitor(console_app(shop, secret="shared")) as opened:
        yield opened


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Give a provider of OpenID Connect."""
    with served() as running:
        yield running
