"""Events that need a bug, or a strange peer, each made by the code that writes it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.observing.seen import received
from tests.client.script import World
from tests.client.scripted_consumer import ScriptedClient, play, reading
from tests.client.test_asyncio_transactions import asked, transactions_of
from tests.waiting import eventually, run_scene

from reliable_mq import Client, ClientSettings, LoggingMiddleware
from reliable_mq.client.connecting.asyncio_membership import AsyncMembership
from reliable_mq.client.consuming.obstacles import MISSING_SECONDS, Obstacles
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.errors import ProtocolError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Retry
from reliable_mq.runtime.direct_links import DirectLinks
from reliable_mq.testing.local_servers import free_port


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


@pytest.fixture(autouse=True)
def every_line_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq")


def test_topic_unknown(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles("g")
    for now in (0.0, MISSING_SECONDS, 2 * MISSING_SECONDS):
        obstacles.note_missing(frozenset({"t"}), now)
    assert events(caplog) == ["topic_unknown"]


def test_topic_awaited(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles("g", are_declared=True)
    for now in (0.0, MISSING_SECONDS, 2 * MISSING_SECONDS):
        obstacles.note_missing(frozenset({"t"}), now)
    assert events(caplog) == ["topic_awaited"]
    assert caplog.records[0].levelname == "INFO"


def test_topic_there(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles("g")
    obstacles.note_absent("t")
    obstacles.note_missing(frozenset({"u"}), 0.0)
    obstacles.note_missing(frozenset({"u"}), MISSING_SECONDS)
    caplog.clear()
    for topic in ("t", "u", "t", "another"):
        obstacles.note_read(topic)
    assert events(caplog) == ["topic_there"] * 2
    assert [record.__dict__["topic"] for record in caplog.records] == ["t", "u"]


def test_received(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks([LoggingMiddleware()], ClientIdentity())
    hooks.call_receive_hooks("payments", [received()])
    assert events(caplog) == ["received"]
    assert caplog.records[0].__dict__["key"] == "-"


def test_check_back_not_joined(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        transactions_of(World()).asked("a:10911", asked())

    run_scene(scene())
    assert events(caplog) == ["check_back_not_joined"]
    assert "M" * 32 in caplog.text


def test_second_connection_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        await DirectLinks(5.0)._connect("127.0.0.1:9", ("127.0.0.1", free_port()))

    run_scene(scene())
    assert events(caplog) == ["second_connection_failed"]


def test_message_not_settled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        return [Retry()]

    def bug(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    async def scene() -> None:
        consumer, _ = reading(ScriptedClient(World()), handle)
        monkeypatch.setattr("reliable_mq.client.consuming.asyncio_handler_pool.settle", bug)
        consumer.pool.pump()
        await eventually(lambda: "message_not_settled" in events(caplog))
        await consumer.pool.close()

    play(scene())
    record = next(each for each in caplog.records if "not settled" in each.message)
    assert record.__dict__["message_id"] == "ID0"


def test_delivery_broken(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        return [CONSUMED]

    async def scene() -> None:
        consumer, _ = reading(ScriptedClient(World()), handle)

        def bug(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(consumer.pool.choice, "note_call", bug)
        consumer.pool.pump()
        await eventually(lambda: "delivery_broken" in events(caplog))

    play(scene())


def test_queue_reading_broken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        return [CONSUMED]

    async def scene() -> None:
        consumer, assigned = reading(ScriptedClient(World()), handle)

        async def bug(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(consumer.reader, "_pull", bug)
        consumer.reader._start_pulling(assigned)
        await eventually(lambda: "queue_reading_broken" in events(caplog))

    play(scene())


class Member:
    """A member of a group whose broker sends resets that nobody can read."""

    def reset_offsets(self, _reset: object) -> None:
        raise AssertionError("it was read")


def test_reset_unreadable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_body: bytes) -> object:
        raise ProtocolError("no JSON")

    monkeypatch.setattr("reliable_mq.client.connecting.asyncio_membership.read_reset", unreadable)
    membership: Any = AsyncMembership.__new__(AsyncMembership)
    membership._members = {"g": Member()}
    command = asked()
    command.ext_fields["group"] = "g"
    membership._offsets_reset("a:10911", command)
    assert events(caplog) == ["reset_unreadable"]


def test_route_not_refreshed(caplog: pytest.LogCaptureFixture) -> None:
    settings = ClientSettings(connect_timeout_seconds=0.5)
    with Client(f"127.0.0.1:{free_port()}", settings=settings) as client:
        engine = client._engine
        loop = client._thread
        assert loop is not None
        places = asyncio.Semaphore(1)
        loop.run(engine._refresh_one("t", places))
    found = events(caplog)
    assert found[:2] == ["peer_not_reached", "route_not_refreshed"]
    assert caplog.records[1].levelno == logging.DEBUG  # its connection has told it


def test_batch_failed(caplog: pytest.LogCaptureFixture) -> None:
    def bug(*_: object) -> Callable[..., object]:
        raise ZeroDivisionError("a bug")

    batcher: Any = AsyncBatcher.__new__(AsyncBatcher)
    batcher._run = bug
    batcher._producer = SimpleNamespace(send_together=lambda *_: None)
    row = SimpleNamespace(topic="t", queue=None)
    batch: Any = SimpleNamespace(prepared=[], row=row, waiting=[1, 2])
    results = run_scene(batcher._results(batch))
    assert len(results) == 2
    assert events(caplog) == ["batch_failed"]
