"""The client's shell against a name server and a broker that follow a script."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.client.script import route_body
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.asyncio_engine import REFRESHES_AT_ONCE
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.observing.middleware import Middleware, ObservedClient
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError, ConnectionLost, Unavailable, UsageError
from reliable_mq.message import Message, MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_command, encode_command, reply
from reliable_mq.wire.frame import FrameReader

QUICK = ClientSettings(
    request_timeout_seconds=60.0, connect_timeout_seconds=60.0, heartbeat_seconds=0.02, retries=0
)
"""Sends heartbeats often, and waits for an answer longer than a busy machine may stand still."""
IMPATIENT = msgspec.structs.replace(QUICK, request_timeout_seconds=0.5)
STORED = {"msgId": "X", "queueId": "0", "queueOffset": "0"}
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BEAT = RequestCode.HEART_BEAT
SEND = RequestCode.SEND_MESSAGE_V2


class Peer:
    """A server that answers what it knows; `broker` is where its routes lead."""

    def __init__(self, broker: str = "") -> None:
        self.broker = broker
        self.silent: set[int] = set()
        self.asked: list[list[int]] = []  # request codes of each connection
        self._loop: asyncio.AbstractEventLoop
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        asked: list[int] = []
        self.asked.append(asked)
        self._writers.add(writer)
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    command = decode_command(frame)
                    asked.append(command.code)
                    if command.code in self.silent:
                        continue
                    answer = self._answer(command)
                    if answer is not None:
                        writer.write(encode_command(answer))
        finally:
            self._writers.discard(writer)
            writer.close()

    def hang_up(self) -> None:
        """End every connection. For any thread."""
        for writer in list(self._writers):
            self._loop.call_soon_threadsafe(writer.close)

    def _answer(self, command: Command) -> Command | None:
        if command.code == ROUTE:
            return reply(command, body=route_body({"a": 1}, addresses={"a": self.broker}))
        if command.code == SEND:
            return reply(command, ext=STORED)
        if command.code == BEAT:
            return reply(command)
        return reply(command, ResponseCode.SYSTEM_ERROR, "not in the script")


Scene = Callable[[AsyncClient, Peer, Peer], Coroutine[Any, Any, None]]


def play(scene: Scene, settings: ClientSettings = QUICK) -> None:
    async def run() -> None:
        broker = Peer()
        async with broker.listening() as broker_address:
            name_server = Peer(broker_address)
            async with (
                name_server.listening() as address,
                AsyncClient(address, settings=settings) as client,
            ):
                await scene(client, name_server, broker)

    run_scene(run())


async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return [CONSUMED] * len(messages)


def message() -> Message:
    return Message(topic="t", body=b"x")


async def is_sent(client: AsyncClient) -> bool:
    """Whether a message is sent in the time that an impatient client has."""
    try:
        await client.send(message())
    except Unavailable:
        return False
    return True


def test_a_broker_hears_who_we_are_before_anything_else() -> None:
    async def scene(client: AsyncClient, name_server: Peer, broker: Peer) -> None:
        await client.consume(Subscription(group="g", topics={"t": "*"}), handle)
        await eventually(lambda: bool(broker.asked) and len(broker.asked[0]) > 1)
        assert broker.asked[0][0] == BEAT
        assert BEAT not in name_server.asked[0], "name servers keep no members"

    play(scene)


def test_a_broker_that_misses_a_heartbeat_is_connected_to_anew() -> None:
    """The other end may be gone without a goodbye; its old connection would never end."""

    async def scene(client: AsyncClient, _: Peer, broker: Peer) -> None:
        await eventually(lambda: is_sent(client))
        before = len(broker.asked)
        broker.silent.add(BEAT)
        await eventually(lambda: len(broker.asked) > before)
        broker.silent.clear()
        await eventually(lambda: broker.asked[-1].count(BEAT) >= 2)
        await eventually(lambda: is_sent(client))

    play(scene, IMPATIENT)


class Knowing(Peer):
    """A broker that knows after one heartbeat who it is that speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.in_short: list[bool] = []

    def _answer(self, command: Command) -> Command | None:
        if command.code != BEAT:
            return super()._answer(command)
        self.in_short.append(msgspec.json.decode(command.body)["withoutSub"])
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
        return reply(command, ext=ext)


def test_a_broker_that_knows_who_we_are_hears_it_in_short() -> None:
    async def scene() -> None:
        broker = Knowing()
        async with (
            broker.listening() as broker_address,
            Peer(broker_address).listening() as address,
            AsyncClient(address, settings=QUICK) as client,
        ):
            await client.send(message())
            await eventually(lambda: any(broker.in_short))
        assert not broker.in_short[0]

    run_scene(scene())


def test_a_silent_name_server_is_connected_to_anew() -> None:
    async def scene(client: AsyncClient, name_server: Peer, _: Peer) -> None:
        name_server.silent.add(ROUTE)
        with pytest.raises(ConnectionLost, match="no name server answers"):
            await client.send(message())
        before = len(name_server.asked)
        name_server.silent.clear()
        await eventually(lambda: is_sent(client))
        assert len(name_server.asked) > before

    play(scene, IMPATIENT)


def test_many_first_sends_ask_for_the_route_once() -> None:
    async def scene(client: AsyncClient, name_server: Peer, _: Peer) -> None:
        await asyncio.gather(*(client.send(message()) for _ in range(50)))
        assert name_server.asked[0].count(ROUTE) == 1

    play(scene)


def test_the_routes_of_many_topics_are_refreshed_side_by_side() -> None:
    """One after the other, silent name servers would keep the last one for an hour."""

    async def scene() -> None:
        settings = ClientSettings(request_timeout_seconds=60.0, route_refresh_seconds=0.05)
        name_server = Peer("127.0.0.1:1")
        async with (
            name_server.listening() as address,
            AsyncClient(address, settings=settings) as client,
        ):
            await asyncio.gather(*(client.topic_route(f"t-{at}") for at in range(200)))
            name_server.silent.add(ROUTE)
            wanted = name_server.asked[0].count(ROUTE) + REFRESHES_AT_ONCE
            await eventually(lambda: name_server.asked[0].count(ROUTE) >= wanted)

    run_scene(scene())


def test_a_client_that_did_nothing_bothers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: AsyncClient, name_server: Peer, broker: Peer) -> None:
        beats = 0
        beat = client._engine.membership.heartbeat

        async def counted() -> None:
            nonlocal beats
            await beat()
            beats += 1

        monkeypatch.setattr(client._engine.membership, "heartbeat", counted)
        await eventually(lambda: beats >= 3)
        assert name_server.asked == broker.asked == []

    play(scene)


def test_name_servers_that_cannot_be_reached_are_named() -> None:
    async def scene() -> None:
        async with AsyncClient("127.0.0.1:1;127.0.0.1:2", settings=QUICK) as client:
            with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
                await client.send(message())

    asyncio.run(scene())


def test_an_address_that_does_not_read_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="no host:port"):
        AsyncClient("localhost")
    with pytest.raises(ConfigurationError, match="no name server"):
        Client("")


def test_a_client_must_be_started_and_starts_and_ends_once() -> None:
    async def scene() -> None:
        client = AsyncClient("127.0.0.1:1", settings=QUICK)
        with pytest.raises(UsageError, match="not started"):
            await client.send(message())
        await client.start()
        with pytest.raises(UsageError, match="started before"):
            await client.start()
        await client.close()
        await client.close()
        subscription = Subscription(group="g", topics={"t": "*"})
        with pytest.raises(UsageError, match="is closed"):
            await client.send(message())
        with pytest.raises(UsageError, match="is closed"):
            await client.consume(subscription, handle)
        with pytest.raises(UsageError, match="is closed"):
            await client.simple_consumer(subscription)
        with pytest.raises(UsageError, match="is closed"):
            client.pull_consumer("g")

    asyncio.run(scene())
    with pytest.raises(UsageError, match="not started"):
        Client("127.0.0.1:1").send(message())


def test_a_client_whose_start_is_interrupted_leaves_no_thread_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: LoopThread, starting: Coroutine[Any, Any, None]) -> None:
        starting.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopThread, "run", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        Client("127.0.0.1:1").start()
    assert set(threading.enumerate()) <= before


class SlowEnd(Middleware):
    """Has something left to do before its client ends."""

    def __init__(self) -> None:
        self.times = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def before_close(self, client: ObservedClient) -> None:
        self.times += 1
        self.begun.set()
        await self.may_end.wait()


def test_a_client_ends_once_and_whole_although_who_closes_it_is_cancelled() -> None:
    async def scene() -> None:
        slow = SlowEnd()
        client = AsyncClient("127.0.0.1:1", settings=QUICK, middleware=[slow])
        await client.start()
        first = asyncio.create_task(client.close())
        await slow.begun.wait()
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="is closed"):
            client.pull_consumer("g")
        slow.may_end.set()
        await again
        assert slow.times == 1
        assert all(daemon.done() for daemon in client._engine._daemons)

    run_scene(scene())


def test_a_reader_that_cannot_be_closed_keeps_nothing_else_from_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck:
        async def close(self) -> None:
            raise OSError("the disk is full")

    async def scene(client: AsyncClient, _: Peer, broker: Peer) -> None:
        waiting = await client.batcher(linger=60).put(message())
        client._engine._readers.add(Stuck())
        await client.close()
        assert (await waiting).queue == MessageQueue("t", "a", 0)
        assert client._engine.open_addresses() == set()

    play(scene)
    assert "closing a consumer failed" in caplog.text
