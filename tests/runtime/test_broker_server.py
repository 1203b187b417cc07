"""A broker over sockets: what goes wrong in it is told, and never leaves it half alive."""

import asyncio
import errno
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import uvloop
from tests.broker_core.broker_world import TOPIC, send_header
from tests.waiting import NEVER_BUSY, SECONDS_MAX, eventually, run_process, scene_limit

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.delivery.client_calls import ClientCalls
from reliable_mq.broker_core.housekeeping import Housekeeping
from reliable_mq.broker_core.requests import handlers
from reliable_mq.broker_core.state import PeerConnection, Turn
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.runtime import broker_chores, broker_server, broker_turns
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import FrameReader


class Ended(BaseException):
    """The process would have ended."""


class Watch:
    """Notes what would have ended the process."""

    def __init__(self) -> None:
        self.causes: list[Exception] = []

    def __call__(self, cause: Exception) -> NoReturn:
        self.causes.append(cause)
        raise Ended


class Peer:
    """A client of bytes: what it asks, and what was answered, by opaque."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._opaque = 0
        self.answers: dict[int, Command] = {}

    def put(self, code: int, ext: dict[str, Any], body: bytes = b"") -> int:
        self._opaque += 1
        command = request(code, {name: str(value) for name, value in ext.items()}, body)
        command.opaque = self._opaque
        self.writer.write(encode_command(command))
        return self._opaque

    async def answer_to(self, opaque: int) -> Command:
        async with scene_limit():
            while opaque not in self.answers:
                data = await self._reader.read(1 << 20)
                assert data, "the broker closed the connection"
                for frame in self._frames.feed(data):
                    answer = decode_command(frame)
                    self.answers[answer.opaque] = answer
        return self.answers[opaque]

    async def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        return await self.answer_to(self.put(code, ext, body))

    async def send(self, topic: str = TOPIC) -> Command:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic), b"x")


async def started(folder: Path, watch: Watch, **properties: str) -> tuple[BrokerServer, Peer]:
    options = BrokerOptions(
        store=folder, port=0, name_server_port=0, properties=NEVER_BUSY | properties
    )
    server = BrokerServer(options, watch)
    await server.start()
    return server, Peer(*await asyncio.open_connection(*server.address.split(":")))


@asynccontextmanager
async def serving(
    folder: Path, watch: Watch, **properties: str
) -> AsyncIterator[tuple[BrokerServer, Peer]]:
    """Run a broker, and a client of it."""
    server, peer = await started(folder, watch, **properties)
    try:
        yield server, peer
    finally:
        peer.writer.close()
        if watch.causes:  # the process would be gone
            server._log_writer.close()
            await server._abandon()
        else:
            await server.close()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what lets a method raise, from its first call on until the test is over."""
    with monkeypatch.context() as patched:

        def breaks(owner: type, name: str, error: Exception) -> None:
            def fail(*_args: object, **_names: object) -> NoReturn:
                patched.undo()
                raise error

            patched.setattr(owner, name, fail)

        yield breaks


QUICK = {
    "timerFlushIntervalMs": "20",
    "cleanResourceInterval": "20",
    "registerNameServerPeriod": "20",
}


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (BrokerCore, "tick"),
        (BrokerCore, "index_some"),
        (BrokerCore, "begin_timer_checkpoint"),
        (MessageStore, "begin_checkpoint"),
        (Housekeeping, "look"),
        (Registrar, "register"),
    ],
)
def test_a_background_task_that_fails_ends_the_broker(
    owner: type,
    method: str,
    tmp_path: Path,
    broken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_STEP_SECONDS", 0.02)
    watch, bug = Watch(), RuntimeError("nobody expected it")

    async def scenario() -> None:
        async with serving(tmp_path, watch, **QUICK) as _:
            broken(owner, method, bug)
            await eventually(lambda: bool(watch.causes))

    asyncio.run(scenario())
    assert watch.causes == [bug]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (BrokerCore, "take_turn"),
        (BrokerCore, "stored"),
        (BrokerCore, "saved"),
        (BrokerCore, "disconnected"),
    ],
)
def test_a_callback_that_fails_ends_the_broker(
    owner: type,
    method: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    broken: Callable[..., None],
) -> None:
    watch, bug = Watch(), RuntimeError("nobody expected it")

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (_, peer):
            assert (await peer.send()).code == ResponseCode.SUCCESS
            broken(owner, method, bug)
            peer.put(RequestCode.SEND_MESSAGE_V2, send_header("new"), b"x")
            if method == "disconnected":
                peer.writer.close()
            await eventually(lambda: bool(watch.causes))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert watch.causes[0] is bug


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broken_invariant_within_a_clients_command_ends_the_broker(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, bug = Watch(), InvariantBroken("L9: it does not hold")

    def fail(*_: object) -> NoReturn:
        raise bug

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (_, peer):
            monkeypatch.setitem(handlers.HANDLERS, RequestCode.GET_MAX_OFFSET, fail)
            peer.put(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            await eventually(lambda: bool(watch.causes))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert watch.causes == [bug]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), StoreError("it does not read")])
def test_whatever_else_goes_wrong_within_a_clients_command_is_answered_to_that_client(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()

    def fail(*_: object) -> NoReturn:
        raise error

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (_, peer):
            monkeypatch.setitem(handlers.HANDLERS, RequestCode.GET_MAX_OFFSET, fail)
            monkeypatch.setattr(ClientCalls, "answer", fail)
            peer.writer.write(encode_command(Command(code=0, flag=1, opaque=7)))
            asked = peer.put(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
            assert (await peer.answer_to(asked)).code == ResponseCode.SYSTEM_ERROR
            assert (await peer.send()).code == ResponseCode.SUCCESS

    asyncio.run(scenario())
    assert watch.causes == []


_DYING = """
import asyncio, sys
from pathlib import Path
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer

def fail(*_):
    raise RuntimeError("nobody expected it")

async def main():
    await BrokerServer(BrokerOptions(store=Path(sys.argv[1]), port=0, name_server_port=0)).start()
    BrokerCore.tick = fail
    await asyncio.sleep(20)

asyncio.run(main())
"""


def test_the_process_ends_with_1_and_says_why(tmp_path: Path) -> None:
    ended = run_process(
        [sys.executable, "-c", _DYING, str(tmp_path)],
        capture_output=True,
        timeout=60,
    )

    assert ended.returncode == 1
    assert "RuntimeError: nobody expected it" in ended.stderr
    assert 'raise RuntimeError("nobody' in ended.stderr or "in fail" in ended.stderr


def test_a_table_of_topics_without_room_refuses_sends_instead_of_keeping_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_disk: FileDisk, path: str, _text: str) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    async def scenario() -> None:
        async with serving(tmp_path, Watch()) as (_, peer), scene_limit():
            assert (await peer.send()).code == ResponseCode.SUCCESS
            with monkeypatch.context() as patched:
                patched.setattr(FileDisk, "write_text", full)
                first = peer.put(RequestCode.SEND_MESSAGE_V2, send_header("new"), b"x")
                refused: list[Command] = []

                async def is_refused() -> bool:
                    answer = await peer.send()
                    refused.extend([answer] if answer.code != ResponseCode.SUCCESS else [])
                    return bool(refused)

                await eventually(is_refused)
                assert refused[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert first not in peer.answers
            assert (await peer.answer_to(first)).code == ResponseCode.SUCCESS
            assert (await peer.send("new")).code == ResponseCode.SUCCESS

    asyncio.run(scenario())


def test_what_waits_for_configuration_files_is_answered_before_the_broker_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, is_writing, write_text = threading.Event(), threading.Event(), FileDisk.write_text

    def slowly(disk: FileDisk, path: str, text: str) -> None:
        is_writing.set()
        assert gate.wait(SECONDS_MAX)
        write_text(disk, path, text)

    def drain_and_open(drain: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        def opened() -> Awaitable[None]:
            asyncio.get_running_loop().call_soon(gate.set)  # the first drain has begun by then
            return drain()

        return opened

    async def scenario() -> None:
        server, peer = await started(tmp_path, Watch())
        monkeypatch.setattr(FileDisk, "write_text", slowly)
        asked = [peer.put(RequestCode.SEND_MESSAGE_V2, send_header("one"), b"x")]
        await asyncio.to_thread(is_writing.wait, SECONDS_MAX)
        asked.append(peer.put(RequestCode.SEND_MESSAGE_V2, send_header("two"), b"x"))
        await eventually(lambda: server._core.state.topics.get("two") is not None)
        monkeypatch.setattr(server._log_writer, "drain", drain_and_open(server._log_writer.drain))
        closing = asyncio.create_task(server.close())
        answers = [await peer.answer_to(opaque) for opaque in asked]
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
        peer.writer.close()
        await closing

    asyncio.run(scenario())


def test_a_turn_that_no_command_began_is_counted_from_when_it_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turn, later_ms = BrokerCore.take_turn, 0
    took_ms: list[int] = []

    def noted(
        core: BrokerCore, began_ms: int = 0, now_ms: int = 0, work_us_max: float = 0.0
    ) -> Turn:
        took_ms.append(now_ms - began_ms)
        return take_turn(core, began_ms, now_ms, work_us_max)

    async def scenario() -> None:
        nonlocal later_ms
        async with serving(tmp_path, Watch()) as (server, peer):
            assert (await peer.send()).code == ResponseCode.SUCCESS
            for module in (broker_server, broker_turns):
                monkeypatch.setattr(module, "now_ms", lambda: now_ms() + later_ms)
            later_ms = 3_600_000
            took_ms.clear()
            monkeypatch.setattr(BrokerCore, "take_turn", noted)
            gone: list[PeerConnection] = []
            disconnected = server.disconnected

            def noted_disconnected(connection: PeerConnection) -> None:
                disconnected(connection)
                gone.append(connection)

            monkeypatch.setattr(server, "disconnected", noted_disconnected)
            peer.writer.close()
            await eventually(lambda: bool(gone))
            turns = len(took_ms)
            await eventually(lambda: len(took_ms) > turns)

    asyncio.run(scenario())
    assert max(took_ms) < 3_600_000 / 2


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_TOPIC_CONFIG, "topic"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, "topic"),
    ],
)
def test_a_name_as_long_as_a_frame_is_refused_and_the_connection_lives_on(
    code: int, ext: str, tmp_path: Path
) -> None:
    watch = Watch()
    name = "x" * (FRAME_SIZE_MAX - 200)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            routes = Peer(*await asyncio.open_connection(*server.name_server_address.split(":")))
            for _ in range(2):
                asked = routes if code == RequestCode.GET_ROUTEINFO_BY_TOPIC else peer
                answer = await asked.ask(code, {ext: name})
                assert answer.code != ResponseCode.SUCCESS
                assert len(answer.remark or "") < 5_000
            routes.writer.close()

    asyncio.run(scenario())
    assert watch.causes == []
