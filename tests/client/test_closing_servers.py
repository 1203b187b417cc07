"""Addresses that accept and close at once, as a server does that demands TLS of a plain client."""

import asyncio
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_asyncio_client import ROUTE, Peer
from tests.runtime.tls_world import Certificates
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost
from reliable_mq.outcomes import CONSUMED
from reliable_mq.wire.command import Command, reply

SPEED = 20.0
CONNECTS_MIN, CONNECTS_MAX = 3, 40
"""In ten seconds: pauses double from 25 ms up to at least half a second."""


class _Quick(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / SPEED)


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is fast, so that the client's seconds take less time."""

    def __init__(self) -> None:
        super().__init__(_Quick())

    def time(self) -> float:
        return super().time() * SPEED


@contextmanager
def closing_server() -> Iterator[tuple[str, list[int]]]:
    """Give the address of a server that closes what it accepts, and its connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, (_, port) = listening.accept()
            except OSError:
                return
            accepted.append(port)
            connection.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    host, port = listening.getsockname()
    yield f"{host}:{port}", accepted
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    serving.join()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["event"] for record in caplog.records]


async def consume(
    address: str, seconds: float, is_seen: Callable[[], object], **settings: Any
) -> None:
    """Consume for some quick seconds, and on a busy machine until enough was seen."""
    async with AsyncClient(address, settings=ClientSettings(**settings)) as client:
        consumer = await client.consume(
            Subscription(group="payments", topics={"orders": "*"}), lambda _: CONSUMED
        )
        consumer.reader.when_accepted(lambda: pytest.fail("nobody has accepted it"))
        await asyncio.sleep(seconds)
        await eventually(is_seen)


def test_a_consumer_pauses_longer_and_longer_and_says_once_that_tls_may_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    with (
        closing_server() as (address, accepted),
        asyncio.Runner(loop_factory=QuickLoop) as runner,
    ):
        runner.run(consume(address, 10.0, lambda: len(accepted) >= CONNECTS_MIN))
    assert len(accepted) <= CONNECTS_MAX
    assert events(caplog) == ["peer_not_reached"]
    assert "closed the connection before it answered" in caplog.messages[0]
    assert "set RELIABLE_MQ_TLS_CA" in caplog.messages[0]


def test_a_server_that_never_answers_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        asyncio.Runner(loop_factory=QuickLoop) as runner,
    ):
        host, port = silent.getsockname()
        runner.run(consume(f"{host}:{port}", 20.0, lambda: "peer_not_reached" in events(caplog)))
    assert events(caplog).count("peer_not_reached") == 1
    assert "it does not answer: another program listens there" in caplog.text


def test_a_server_that_closes_at_once_fails_calls_at_once_for_a_while() -> None:
    async def scene(address: str) -> None:
        async with AsyncClient(address) as client:
            for _ in range(200):
                with pytest.raises(ConnectionLost, match=r"closed the connection"):
                    await client.topic_route("orders")

    with closing_server() as (address, accepted):
        asyncio.run(scene(address))
    assert len(accepted) <= CONNECTS_MAX


def test_an_encrypted_client_at_a_server_without_tls_is_told_what_to_unset(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    tls = TLS(ca=Certificates(tmp_path).ca)
    with (
        closing_server() as (address, accepted),
        asyncio.Runner(loop_factory=QuickLoop) as runner,
    ):
        runner.run(consume(address, 5.0, lambda: len(accepted) >= CONNECTS_MIN, tls=tls))
    assert len(accepted) <= CONNECTS_MAX
    assert events(caplog) == ["peer_not_reached"]
    assert "unset RELIABLE_MQ_TLS_CA, or let the server have TLS" in caplog.messages[0]


class _Refusing(Peer):
    """A name server that answers, and a broker that refuses each request of the account."""

    def _answer(self, command: Command) -> Command | None:
        if command.code == ROUTE:
            return super()._answer(command)
        return reply(command, 16, "check signature failed.")


def test_a_wrong_secret_is_one_line_of_the_group_with_its_variables(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")

    async def scene() -> None:
        secret = Credentials(access_key="worker", secret_key="a wrong one")
        async with (
            _Refusing().listening() as broker,
            _Refusing(broker).listening() as names,
        ):
            await consume(names, 10.0, lambda: len(caplog.messages) >= 2, credentials=secret)

    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        runner.run(scene())
    told = [text for text in caplog.messages if "check signature failed" in text]
    assert events(caplog) == ["heartbeat_refused", "consumer_obstacle"]
    assert len(told) == 2
    assert "RELIABLE_MQ_ACCESS_KEY, RELIABLE_MQ_SECRET_KEY" in told[1]


async def asked_on_a_new_connection(client: AsyncClient, peer: Peer) -> "asyncio.Task[Any]":
    """Ask until the connection that has ended is forgotten; return the call that waits."""
    while True:
        asking = asyncio.create_task(client.topic_route("orders"))
        is_asked = partial(_is_asked, peer, asking)
        await eventually(is_asked)
        if not asking.done():
            return asking
        assert isinstance(asking.exception(), ConnectionLost)


def _is_asked(peer: Peer, asking: "asyncio.Task[Any]") -> bool:
    return asking.done() or (len(peer.asked) > 1 and bool(peer.asked[-1]))


def test_a_server_that_has_answered_before_is_not_suspected_of_tls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        peer = Peer()
        async with peer.listening() as address, AsyncClient(address) as client:
            await client.topic_route("orders")
            peer.silent.add(ROUTE)
            peer.hang_up()
            asking = await asked_on_a_new_connection(client, peer)
            peer.hang_up()
            with pytest.raises(ConnectionLost, match="closed the connection"):
                await asking

    caplog.set_level(logging.INFO, "reliable_mq")
    asyncio.run(scene())
    assert events(caplog) == ["peer_lost"]
    assert "closed the connection before it answered" in caplog.messages[0]
    assert "TLS" not in caplog.messages[0]
