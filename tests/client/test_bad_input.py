"""What a client does with name servers, brokers, clocks and secrets that are not as they should be.

One test for each line of the table in docs/reference/client.md; handlers have theirs elsewhere.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.client.servers import FeedingPeer, NameServer, RecordingPeer
from tests.client.test_asyncio_client import BEAT, QUICK, SEND, Peer, is_sent, message
from tests.waiting import eventually, run_scene, scene_limit

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConnectionLost,
    NotPermitted,
    ProtocolError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply, request
from reliable_mq.wire.record import Record

PULL = RequestCode.PULL_MESSAGE
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
SETTINGS = msgspec.structs.replace(QUICK, rebalance_retry_seconds=0.01, pull_retry_seconds_max=0.01)
UNORDERED = Subscription(group="g", topics={"t": "*"}, ordered=False)


@asynccontextmanager
async def client_of(
    broker: Peer, settings: ClientSettings = SETTINGS, name_server: Peer | None = None
) -> AsyncIterator[AsyncClient]:
    """Give a client of these two servers, and as long as a test may take."""
    name_server = name_server or NameServer()
    async with scene_limit(), broker.listening() as broker_address:
        name_server.broker = broker_address
        async with (
            name_server.listening() as address,
            AsyncClient(address, settings=settings) as client,
        ):
            yield client


class Seen:
    """A handler that notes bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        self.bodies += [each.body for each in messages]
        return [CONSUMED] * len(messages)


def stored(*bodies: bytes) -> list[Record]:
    return [Record(topic="t", body=body) for body in bodies]


# No name server


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nohost.invalid:9876"])
def test_without_a_name_server_a_send_says_who_does_not_answer(address: str) -> None:
    async def scene() -> None:
        async with AsyncClient(address, settings=QUICK) as client:
            with pytest.raises(
                ConnectionLost, match=f"no name server answers .{address} cannot be reached: "
            ):
                await client.send(message())

    run_scene(scene())


def test_a_consumer_that_starts_without_a_name_server_reads_when_there_is_one() -> None:
    async def scene() -> None:
        name_server, broker, seen = NameServer(), FeedingPeer(stored(b"1", b"2")), Seen()
        place = socket.socket()
        place.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        host, port = place.getsockname()
        async with (
            broker.listening() as name_server.broker,
            AsyncClient(f"{host}:{port}", settings=SETTINGS) as client,
        ):
            consumer = await client.consume(UNORDERED, seen)
            assert consumer.queues == set()
            server = await asyncio.start_server(name_server._serve, sock=place)
            await eventually(lambda: seen.bodies == [b"1", b"2"])
            server.close()

    run_scene(scene())


# Garbage


class Website(Peer):
    """Speaks another protocol."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_a_name_server_that_speaks_another_protocol_is_named() -> None:
    async def scene() -> None:
        async with client_of(Peer(), QUICK, Website()) as client:
            with pytest.raises(ConnectionLost, match="sent an invalid command: another program"):
                await client.send(message())

    asyncio.run(scene())


class Mumbling(RecordingPeer):
    """Answers one request code with what does not read, `times` times."""

    def __init__(self, code: int, times: int, **garbage: object) -> None:
        super().__init__()
        self._code, self._times, self._garbage = code, times, garbage

    def _answer(self, command: Command) -> Command | None:
        told = super()._answer(command)
        if command.code == self._code and self._times:
            self._times -= 1
            return reply(command, **self._garbage)  # type: ignore[arg-type]
        return told


def test_a_route_that_does_not_read_is_an_error_that_names_the_topic() -> None:
    async def scene() -> None:
        mumbling = Mumbling(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, body=b"\0garbage")
        async with client_of(Peer(), QUICK, mumbling) as client:
            with pytest.raises(ProtocolError, match="the route of topic t cannot be decoded"):
                await client.send(message())
            await client.send(message())

    asyncio.run(scene())


@pytest.mark.parametrize("ext", [{}, {"queueId": "x"}, {"msgId": "1", "queueId": "-" * 999}])
def test_an_answer_to_a_send_that_does_not_read_is_an_error_of_the_brokers(
    ext: dict[str, str],
) -> None:
    async def scene() -> None:
        broker = Mumbling(SEND, 1, ext=ext)
        async with client_of(broker) as client:
            with pytest.raises(ProtocolError):
                await client.send(message())
            await client.send(message())
        assert len(broker.bodies) == 2, "it may be stored, so it was not sent again"

    asyncio.run(scene())


@pytest.mark.parametrize("garbage", [b"\0garbage", b"\xff" * 100, bytes(88)])
def test_a_pull_that_does_not_read_is_repeated_and_nothing_is_lost(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        seen = Seen()
        async with client_of(FeedingPeer(garbage, garbage, garbage, stored(b"1", b"2"))) as client:
            await client.consume(UNORDERED, seen)
            await eventually(lambda: seen.bodies == [b"1", b"2"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert caplog.text.count("a pull of") == 1, "told once, not with every try"


def test_a_request_of_a_broker_that_does_not_read_keeps_the_connection() -> None:
    class Asking(RecordingPeer):
        """Asks, with everything it gets, for what makes no sense."""

        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for code in (*NONSENSE, 4711):
                question = request(code, {"group": "g", "topic": "\0"}, b"\xff\0")
                question.opaque = code
                writer.write(encode_command(question))
            await super()._serve(reader, writer)

    async def scene() -> None:
        broker = Asking()
        async with client_of(broker) as client:
            for code in NONSENSE:
                client._engine.requests.setdefault(code, _raises)
            for _ in range(3):
                await client.send(message())
            replies = [c for c in broker.commands if c.is_reply]
            assert {each.opaque for each in replies} >= {4711}
            assert len(broker.is_open) == 1

    asyncio.run(scene())


NONSENSE = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.CHECK_TRANSACTION_STATE,
    4712,
)


def _raises(address: str, command: Command) -> Command:
    raise KeyError(command.code)


# Nothing


def test_a_broker_that_answers_nothing_is_a_time_out_within_the_time_that_was_given() -> None:
    async def scene() -> None:
        broker = RecordingPeer()
        async with client_of(broker) as client:
            await client.send(message())  # from now on its route is known
            broker.silent.add(SEND)
            begun = time.monotonic()
            with pytest.raises(RequestTimeout, match="did not answer request 310"):
                await client.send(message(), timeout=0.2)
            assert time.monotonic() - begun < SETTINGS.request_timeout_seconds / 2

    asyncio.run(scene())


class Deaf(Peer):
    """Accepts and reads nothing, as long as `hears` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.hears = asyncio.Event()
        self.connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self.hears.is_set():
            await self.hears.wait()
            writer.close()
            return
        await super()._serve(reader, writer)


def test_a_broker_that_stalls_holds_nobody_beyond_their_time_out_and_is_connected_to_anew() -> None:
    async def scene() -> None:
        broker = Deaf()
        settings = msgspec.structs.replace(QUICK, request_timeout_seconds=0.1)
        async with client_of(broker, settings) as client:

            async def is_connected() -> bool:  # the name server may be too late, too
                outcomes = await asyncio.gather(
                    *(client.send(message(), timeout=0.3) for _ in range(20)),
                    return_exceptions=True,
                )
                assert {isinstance(each, Unavailable) for each in outcomes} == {True}
                return bool(broker.connections)

            await eventually(is_connected)
            broker.hears.set()
            await eventually(lambda: is_sent(client))
            assert broker.connections > 1

    asyncio.run(scene())


# Clocks


@pytest.mark.parametrize("hours", [-24 * 365, 24 * 365])
def test_a_clock_that_jumps_changes_neither_time_outs_nor_what_arrives(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_ns, true_time = time.time_ns, time.time
    jumped = 0.0

    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(jumped * 1e9))
    monkeypatch.setattr(time, "time", lambda: true_time() + jumped)

    async def scene() -> None:
        nonlocal jumped
        seen, broker = Seen(), FeedingPeer(stored(b"1"), stored(b"2"))
        async with client_of(broker) as client:
            first = await client.send(message())
            await client.consume(UNORDERED, seen)
            jumped = hours * 3600.0
            await eventually(lambda: seen.bodies == [b"1", b"2"])
            second = await client.send(message(), timeout=60.0)
            assert first.message_id != second.message_id

            def beats() -> int:
                return sum(asked.count(BEAT) for asked in broker.asked)

            before = beats()
            await eventually(lambda: beats() > before)
            broker.silent.add(SEND)
            begun = time.monotonic()
            with pytest.raises(RequestTimeout):
                await client.send(message(), timeout=0.1)
            assert time.monotonic() - begun < SETTINGS.request_timeout_seconds / 2

    asyncio.run(scene())


# Secrets and permissions


class Guarded(FeedingPeer):
    """Takes what is signed with one secret, and says what Apache's brokers say to the rest."""

    def __init__(self, secret: str, *pulls: Sequence[Record]) -> None:
        super().__init__(*pulls)
        self.secret = secret

    def _answer(self, command: Command) -> Command | None:
        signature = command.ext_fields.get("Signature")
        again = msgspec.structs.replace(command, ext_fields=dict(command.ext_fields))
        Signing(Credentials(access_key="me", secret_key=self.secret))(again)
        if signature != again.ext_fields["Signature"]:
            self.commands.append(command)
            return reply(command, ResponseCode.NO_PERMISSION, "check signature failed")
        return super()._answer(command)


ACCOUNT = msgspec.structs.replace(
    SETTINGS, credentials=Credentials(access_key="me", secret_key="a secret"), retries=2
)


def test_a_wrong_secret_is_refused_at_the_first_try() -> None:
    async def scene() -> None:
        broker = Guarded("another secret")
        async with client_of(broker, ACCOUNT) as client:
            with pytest.raises(NotPermitted, match="check signature failed"):
                await client.send(message())
            assert len(broker.bodies) == 1
            broker.secret = "a secret"
            await client.send(message())

    asyncio.run(scene())


def test_a_consumer_with_a_wrong_secret_says_so_once_and_reads_when_the_account_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        seen, broker = Seen(), Guarded("another secret", stored(b"1"))
        async with client_of(broker, ACCOUNT) as client:
            await client.consume(UNORDERED, seen)
            await eventually(lambda: sum(c.code == MEMBERS for c in broker.commands) > 5)
            assert seen.bodies == []
            broker.secret = "a secret"
            await eventually(lambda: seen.bodies == [b"1"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert caplog.text.count("topic t cannot be read: code 16: check signature failed") == 1


def test_a_topic_that_may_not_be_written_is_refused_when_every_broker_has_said_so() -> None:
    async def scene() -> None:
        broker = FeedingPeer()
        words = "the broker[a] sending message is forbidden"
        broker.refusals[SEND] = (ResponseCode.NO_PERMISSION, words)
        settings = msgspec.structs.replace(SETTINGS, retries=2, backoff_seconds=0.001)
        async with client_of(broker, settings) as client:
            with pytest.raises(NotPermitted, match="sending message is forbidden"):
                await client.send(message())
            assert len(broker.bodies) == 3, "another broker might have taken it"

    asyncio.run(scene())


def test_a_group_that_may_not_read_says_so_once_and_reads_when_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        seen, broker = Seen(), FeedingPeer(stored(b"1", b"2"))
        broker.refusals[PULL] = (ResponseCode.NO_PERMISSION, "consume is disabled")
        async with client_of(broker) as client:
            await client.consume(UNORDERED, seen)
            await eventually(lambda: sum(c.code == PULL for c in broker.commands) > 5)
            broker.refusals.clear()
            await eventually(lambda: seen.bodies == [b"1", b"2"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert caplog.text.count("consume is disabled") == 1
