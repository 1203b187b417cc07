"""Nothing that the client does keeps the event loop, which is the application's, from others."""

import asyncio
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.client.servers import FeedingPeer, Servers
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.record import COMPRESSED, Record

STEP_SECONDS_MAX = 0.04
"""Of processor time: another process that is busy makes no step longer."""

LARGE = bytes(MESSAGE_BODY_SIZE_MAX)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, None]], float]:
    """Run a coroutine on asyncio's own loop, and return how long its longest step took."""
    steps: list[float] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        steps.append(time.thread_time() - begun)

    def watch(scene: Coroutine[Any, Any, None]) -> float:
        monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
        run_scene(scene)
        return max(steps)

    return watch


def test_the_watch_sees_what_holds_the_loop_up(
    watched: Callable[[Coroutine[Any, Any, None]], float],
) -> None:
    async def holds_up() -> None:
        for _ in range(32):  # 0.3 s of a slow processor
            zlib.compress(LARGE)

    assert watched(holds_up()) > STEP_SECONDS_MAX


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_large_messages_are_sent_in_short_steps(
    watched: Callable[[Coroutine[Any, Any, None]], float], compression: str
) -> None:
    async def scene() -> None:
        settings = ClientSettings(compression=compression)
        async with AsyncClient(servers.address, settings=settings) as client:
            await asyncio.gather(
                *(client.send(Message(topic="t", body=LARGE), timeout=30) for _ in range(4))
            )

    with Servers() as servers:
        assert watched(scene()) < STEP_SECONDS_MAX


def test_a_pull_of_compressed_messages_is_unpacked_elsewhere(
    watched: Callable[[Coroutine[Any, Any, None]], float],
) -> None:
    packed = zlib.compress(LARGE)
    records = [Record(topic="t", body=packed, sys_flag=COMPRESSED) for _ in range(32)]
    sizes: list[int] = []
    done = asyncio.Event()

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        sizes.extend(len(message.body) for message in messages)
        if len(sizes) == 32:
            done.set()
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        async with AsyncClient(servers.address, settings=ClientSettings()) as client:
            subscription = Subscription(group="g", topics={"t": "*"}, ordered=False)
            await client.consume(subscription, handle)
            await done.wait()

    with Servers(FeedingPeer(records)) as servers:
        assert watched(scene()) < STEP_SECONDS_MAX
    assert sizes == [len(LARGE)] * 32
