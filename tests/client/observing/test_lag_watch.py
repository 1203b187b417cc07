"""The watch of how far groups are behind, and what breaks in whom it tells."""

import asyncio
from typing import Any

import pytest
from tests.client.script import World
from tests.client.scripted_consumer import ScriptedClient, consumed, play, reading
from tests.waiting import eventually

from reliable_mq.client.observing.asyncio_lag import LagWatch
from reliable_mq.client.settings import ClientSettings


class Watched:
    """A client with one consumer, whose group g is five messages of topic t behind."""

    settings = ClientSettings()

    def __init__(self) -> None:
        consumer, assigned = reading(ScriptedClient(World()), consumed)
        assigned.note_end(5, asyncio.get_running_loop().time())
        self.members = [consumer]


def test_one_failure_of_whom_it_tells_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[int] = []

    def note(group: str, topic: str, count: int) -> None:
        told.append(count)
        if len(told) != 2:
            raise ValueError("a bug of his")

    async def scene() -> None:
        client: Any = Watched()
        watch = LagWatch(client, note, seconds=0.001)
        await eventually(lambda: len(told) >= 4)
        await watch.stop()

    play(scene())
    assert told[:4] == [5] * 4
    assert told[-1] == 0
    assert caplog.text.count("was not noted") == 1, "not with every look"


def test_who_is_cancelled_while_he_stops_the_watch_is_cancelled() -> None:
    async def scene() -> None:
        client: Any = Watched()
        watch = LagWatch(client, lambda *_: None)
        await asyncio.sleep(0)  # it runs
        stopping = asyncio.create_task(watch.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping

    play(scene())
