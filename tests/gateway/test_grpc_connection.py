"""One connection of a gRPC client: how long requests may take, and what its calls hold."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest
from tests.gateway.test_http2 import SETTINGS, Transport, frames
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2_frames import PREFACE, STREAMS_MAX, Stream, frame_of
from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime import grpc_connection
from reliable_mq.runtime.grpc_connection import GrpcConnection
from reliable_mq.runtime.grpc_telemetry import Telemetry
from reliable_mq.runtime.server_connection import TurnShares


class Listener:
    """Notes what a connection holds."""

    no_tls = "no TLS here"
    slice_seconds = 0.0005

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        self.turns = TurnShares()
        self.later: list[Any] = []  # connections that want a turn

    def handle_later(self, connection: Any) -> None:
        self.later.append(connection)

    def note_received(self, number: int, size: int) -> None:
        self.received[number] = size

    def note_unsent(self, number: int, size: int) -> None:
        pass

    def closed(self, connection: PeerConnection) -> None:
        self.received[connection.id] = 0


class Calls:
    """Calls that nobody answers."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.senders: list[tuple[str, str, bool]] = []  # client, its language, is it refused
        self.told: list[Any] = []
        self.handed_over: list[int] = []  # how many streams there were each time

    def hand_over(self, _number: int) -> None:
        self.handed_over.append(len(self.streams))

    def answer(
        self, _connection: Any, stream: Stream, _name: str, caller: Any, _call: Any, refused: Any
    ) -> None:
        self.streams.append(stream)
        self.senders.append((caller.client_id, caller.language, refused is not None))

    answer_streamed = answer

    def answer_usual(self, *_call: Any) -> bool:
        return False

    def tell(self, _connection: Any, _stream: Stream, _telemetry: Any, command: Any) -> None:
        self.told.append(command)

    def lost(self, telemetry: Any) -> None:
        pass


class Sent(Transport):
    """A socket that keeps what it takes."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def write(self, data: bytes) -> None:
        self.data.append(data)


class Scene:
    """A connection that has begun."""

    def __init__(self) -> None:
        self.listener, self.calls, self.socket = Listener(), Calls(), Sent()
        self.connection = GrpcConnection(cast("Any", self.listener), cast("Any", self.calls))
        self.connection._transport = cast("Any", self.socket)
        self.connection._connection = PeerConnection(7, b"", "10.0.0.1:1")
        self.connection.data_received(PREFACE + SETTINGS)

    @property
    def counted(self) -> int:
        """What the listener counts."""
        return self.listener.received[7]

    def ended(self) -> list[int]:
        """Return the streams that the server has ended."""
        return [
            number for kind, flags, number, _ in frames(self.socket.data) if kind == 1 and flags & 1
        ]


def headers(number: int, name: str, client: bytes = b"c", language: bytes = b"") -> bytes:
    path = f"/{SERVICE}/{name}".encode()
    pairs = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b"content-type", b"application/grpc"),
    ]
    pairs += [(b"x-mq-client-id", client), (b"x-mq-language", language)]
    return frame_of(1, 4, number, block_of(pairs))


def message(name: str, **fields: Any) -> bytes:
    data: bytes = TYPES[name](**fields).SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


def call(number: int, size: int = 0) -> bytes:
    body = message("AckMessageRequest", topic={"name": "x" * size})
    cut = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]
    parts = [frame_of(0, 1 if each is cut[-1] else 0, number, each) for each in cut]
    return headers(number, "AckMessage") + b"".join(parts)


def test_each_call_is_of_the_client_that_it_names() -> None:
    named = [
        (b"a", b"GO"),
        (b"a", b"GO"),
        (b"b", b"GO"),
        (b"", b"GO"),
        (b"b", b"JAVA"),
        (b"b", b""),
    ]

    async def run() -> None:
        scene = Scene()
        for place, (client, language) in enumerate(named):
            number = 2 * place + 1
            body = frame_of(0, 1, number, message("AckMessageRequest"))
            scene.connection.data_received(headers(number, "AckMessage", client, language) + body)
        assert scene.calls.senders == [
            (client.decode(), language.decode(), not client) for client, language in named
        ]

    asyncio.run(run())


@pytest.mark.parametrize("name", ["AckMessage", "Telemetry"])
def test_a_request_that_never_ends_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "REQUEST_SECONDS", 0.05)

    async def run() -> None:
        scene = Scene()
        scene.connection.data_received(headers(1, name))
        await eventually(lambda: scene.ended() == [1])
        assert b"the request has not come within" in b"".join(scene.socket.data)
        assert not scene.connection._http2.streams
        scene.connection._http2.invariants()

    run_scene(run())


def test_a_client_that_has_sent_its_settings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "REQUEST_SECONDS", 0.05)

    async def run() -> None:
        scene = Scene()
        settings = message("TelemetryCommand", settings={"client_type": 1})
        told = headers(1, "Telemetry") + frame_of(0, 0, 1, settings)
        scene.connection.data_received(told + headers(3, "Telemetry"))
        await eventually(lambda: scene.ended() == [3])
        assert list(scene.connection._http2.streams) == [1]
        assert len(scene.calls.told) == 1

    run_scene(run())


def test_a_client_that_reads_no_commands_loses_its_stream() -> None:
    """Each check-back has a message of up to 4 MiB."""

    async def run() -> None:
        scene = Scene()
        settings = message("TelemetryCommand", settings={"client_type": 1})
        scene.connection.data_received(headers(1, "Telemetry") + frame_of(0, 0, 1, settings))
        telemetry = scene.connection._http2.streams[1].context
        assert isinstance(telemetry, Telemetry)
        recover = {"message": {"body": b"x" * 3_000_000}}
        command = TYPES["TelemetryCommand"](recover_orphaned_transaction_command=recover)
        for _ in range(20):
            telemetry.write(command)
        assert scene.connection._http2.waiting_size < 13_000_000
        scene.connection._http2.invariants()

    run_scene(run())


def test_calls_that_come_together_are_handed_over_together() -> None:
    async def run() -> None:
        scene = Scene()
        scene.calls.handed_over.clear()
        scene.connection.data_received(call(1) + call(3) + call(5))
        assert scene.calls.handed_over == [3]

    run_scene(run())


def test_the_memory_of_a_call_counts_until_it_is_answered() -> None:
    async def run() -> None:
        scene = Scene()
        scene.connection.data_received(call(1, 300_000) + call(3, 100_000))
        assert scene.counted > 400_000
        first, second = scene.calls.streams
        scene.connection.respond(first, TYPES["AckMessageResponse"]())
        assert 100_000 < scene.counted < 110_000
        scene.connection.end(second, 0, "")
        assert scene.counted == 0

    run_scene(run())


def test_a_call_that_is_reset_counts_until_it_has_ended() -> None:
    """Else a client begins any number of calls: it resets each of them."""

    async def run() -> None:
        scene = Scene()
        for number in range(1, 2 * STREAMS_MAX + 40, 2):
            scene.connection.data_received(call(number))
            scene.connection.data_received(frame_of(3, 0, number, b"\0\0\0\0"))
        assert len(scene.calls.streams) == STREAMS_MAX
        assert b"calls are not answered yet" in b"".join(scene.socket.data)
        for stream in list(scene.calls.streams):
            scene.connection.respond(stream, TYPES["AckMessageResponse"]())
        scene.connection.data_received(call(99_999))
        assert len(scene.calls.streams) == STREAMS_MAX + 1

    run_scene(run())


def test_the_headers_of_many_open_streams_count() -> None:
    async def run() -> None:
        scene = Scene()
        numbers = range(1, 401, 2)
        for number in numbers:
            scene.connection.data_received(headers(number, "AckMessage"))
        assert scene.counted >= 200 * 1024

    run_scene(run())


@pytest.mark.parametrize("name", ["Nothing", "AckMessage"])
def test_streams_that_the_server_ends_at_once_leave_nothing(name: str) -> None:
    async def run() -> None:
        scene = Scene()
        head = headers(1, name)[9:]
        if name == "AckMessage":  # no content type
            head = block_of([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x")])
        for number in range(1, 20_001, 2):
            scene.connection.data_received(frame_of(1, 4, number, head))
        assert not scene.connection._coming
        assert scene.counted == 0
        assert len(scene.ended()) == 10_000

    run_scene(run())


def test_a_lost_connection_counts_nothing_when_its_calls_end() -> None:
    async def run() -> None:
        scene = Scene()
        scene.connection.data_received(call(1, 300_000))
        scene.connection.connection_lost(None)
        scene.connection.respond(scene.calls.streams[0], TYPES["AckMessageResponse"]())
        await asyncio.sleep(0)
        assert scene.counted == 0

    run_scene(run())


@pytest.mark.parametrize("fault", ["ping", "nothing"])
def test_a_client_of_http2_is_told_goodbye_in_http2(fault: str) -> None:
    async def run() -> None:
        scene = Scene.__new__(Scene)
        scene.listener, scene.calls, scene.socket = Listener(), Calls(), Sent()
        connection = GrpcConnection(cast("Any", scene.listener), cast("Any", scene.calls))
        socket: Any = scene.socket
        socket.close = lambda: None
        connection._transport = socket
        connection._connection = PeerConnection(7, b"", "10.0.0.1:1")
        first = PREFACE + SETTINGS + frame_of(6, 0, 0, b"short")
        connection.data_received(first if fault == "ping" else b"GET / HTTP/1.1\r\n\r\n")
        sent = b"".join(scene.socket.data)
        assert sent.startswith(b"HTTP/1.1 505") is (fault == "nothing")
        if fault == "ping":
            assert 7 in [kind for kind, *_ in frames(scene.socket.data)]

    run_scene(run())
