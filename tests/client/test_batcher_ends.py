"""What becomes of messages in a batcher whose loop ends first, or which meet a bug."""

import socket
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.client.test_batcher import (
    BATCH,
    FOREVER,
    SEND,
    SETTINGS,
    Shelf,
    message,
    play,
    with_threads,
)
from tests.waiting import until

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.sending.thread_sending import Batcher
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConnectionLost, UsageError
from reliable_mq.message import SendResult


def interrupt_the_end_of(client: Client, batcher: Batcher) -> None:
    """Close a client, and wait no longer than until its batcher is being closed, as for Ctrl-C."""
    thread = client._thread
    assert thread is not None

    def run(closing: Coroutine[Any, Any, object]) -> None:
        thread.submit(closing)
        until(lambda: batcher._batcher._is_closed)
        raise KeyboardInterrupt

    thread.run = run  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.close()


def are_told(futures: Iterable[Future[SendResult]]) -> None:
    for future in futures:
        with pytest.raises(ConnectionLost, match="closed meanwhile"):
            future.result(60)


def test_who_waits_for_a_stalled_broker_is_told_when_a_person_interrupts_the_end() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        client.send(message("the route is known"))
        shelf.silent |= {SEND, BATCH}
        batcher = client.batcher(count=2, linger=FOREVER)
        futures = [batcher.put(message(at, key="one queue")) for at in range(5)]
        until(lambda: any(BATCH in asked for asked in shelf.asked))
        interrupt_the_end_of(client, batcher)
        are_told(futures)
        assert client._engine.in_flight.count == 0

    with_threads(scene)


def test_who_waits_for_a_name_server_that_is_silent_is_told_likewise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}", settings=SETTINGS)
        client.start()
        batcher = client.batcher(linger=FOREVER)
        futures = [batcher.put(message(at)) for at in range(2)]
        interrupt_the_end_of(client, batcher)
        are_told(futures)


async def ends_its_thread() -> None:
    raise SystemExit(3)


def test_a_client_whose_loop_something_has_ended_is_closed_like_another() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        client.send(message("the route is known"))
        batcher = client.batcher(count=2, linger=FOREVER)
        future = batcher.put(message(1))
        thread = client._thread
        assert thread is not None
        thread.submit(ends_its_thread())
        until(lambda: not thread.is_alive)
        client.close()
        are_told([future])
        assert client._engine.in_flight.count == 0
        with pytest.raises(UsageError, match="this client is closed"):
            client.send(message(2))
        client.close()

    with_threads(scene)


@pytest.mark.parametrize("where", ["the route", "the row", "the row of a known topic"])
def test_a_bug_on_the_way_into_a_row_is_told_to_its_sender_and_keeps_nobody_waiting(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    async def scene(client: AsyncClient, _: Shelf) -> None:
        async with client.batcher() as batcher:
            if where == "the row of a known topic":
                await batcher.send(message(0))
            if where == "the route":
                monkeypatch.setattr(batcher._routes, "to_send", bug)
            else:
                monkeypatch.setattr(batcher._producer, "queue_of", bug)
            bad = [await batcher.put(message(at, key="k")) for at in range(2)]
            for each in bad:
                with pytest.raises(ZeroDivisionError):
                    await each
            monkeypatch.undo()
            assert (await batcher.send(message(2, key="k"))).queue_offset == 10

    play(scene)
    assert "a bug" in caplog.text
