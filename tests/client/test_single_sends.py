"""Single messages on a connection that is open, sent by tasks and by threads: both the same way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec
import pytest
from tests.client.servers import RecordingPeer, Servers
from tests.client.test_asyncio_client import QUICK, SEND
from tests.waiting import run_scene, until

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.flow import Flow
from reliable_mq.client.observing.middleware import Middleware, Sending
from reliable_mq.client.sending.producer import PendingSend, SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import MessageRefused, Refused, RequestTimeout, Unavailable, UsageError
from reliable_mq.message import Message, SendResult
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

Outcome = SendResult | Exception
WARM = Message(topic="t", body=b"the first")
LONG_SECONDS = 60.0


class Send(Protocol):
    """A way of sending messages one after the other."""

    def __call__(
        self,
        address: str,
        messages: list[Message],
        hooks: list[Middleware],
        timeout: float = LONG_SECONDS,
    ) -> list[Outcome]: ...


def by_task(
    address: str,
    messages: list[Message],
    hooks: list[Middleware],
    timeout: float = LONG_SECONDS,
) -> list[Outcome]:
    async def scene() -> list[Outcome]:
        outcomes: list[Outcome] = []
        async with AsyncClient(address, settings=SETTINGS, middleware=hooks) as client:
            await client.send(WARM)
            for message in messages:
                try:
                    outcomes.append(await client.send(message, timeout=timeout))
                except (Unavailable, Refused, MessageRefused) as error:
                    outcomes.append(error)
            assert client._engine.in_flight.count == 0
        return outcomes

    return run_scene(scene())


def by_send_many(
    address: str,
    messages: list[Message],
    hooks: list[Middleware],
    timeout: float = LONG_SECONDS,
) -> list[Outcome]:
    """Send each message as the only one of a `send_many`, which has the timeout of a request."""
    quick = min(timeout, SETTINGS.request_timeout_seconds)
    settings = msgspec.structs.replace(SETTINGS, request_timeout_seconds=quick)

    async def scene() -> list[Outcome]:
        outcomes: list[Outcome] = []
        async with AsyncClient(address, settings=settings, middleware=hooks) as client:
            await client.send(WARM)
            for message in messages:
                outcomes += await client.send_many([message])
            assert client._engine.in_flight.count == 0
        return outcomes

    return run_scene(scene())


def by_thread(
    address: str,
    messages: list[Message],
    hooks: list[Middleware],
    timeout: float = LONG_SECONDS,
) -> list[Outcome]:
    return in_thread(address, messages, hooks, timeout, Client.send)


def by_lone_thread(
    address: str,
    messages: list[Message],
    hooks: list[Middleware],
    timeout: float = LONG_SECONDS,
) -> list[Outcome]:
    """Send on a connection of the thread's own; with hooks there is none."""

    def warm_up(client: Client, message: Message) -> None:
        def sent() -> bool:
            client.send(message)
            return client._engine.has_direct_links or bool(hooks)

        until(sent)

    return in_thread(address, messages, hooks, timeout, warm_up)


def in_thread(
    address: str,
    messages: list[Message],
    hooks: list[Middleware],
    timeout: float,
    warm_up: Callable[[Client, Message], object],
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with Client(address, settings=SETTINGS, middleware=hooks) as client:
        warm_up(client, WARM)
        for message in messages:
            try:
                outcomes.append(client.send(message, timeout=timeout))
            except (Unavailable, Refused, MessageRefused) as error:
                outcomes.append(error)
        assert client._engine.in_flight.count == 0
    return outcomes


SETTINGS = ClientSettings(
    request_timeout_seconds=QUICK.request_timeout_seconds,
    connect_timeout_seconds=QUICK.connect_timeout_seconds,
    retries=1,
    backoff_seconds=0.001,
    route_refresh_seconds=60,
)
ALL_WAYS = pytest.mark.parametrize("send", [by_task, by_thread, by_lone_thread, by_send_many])


class Moody(RecordingPeer):
    """A broker that answers sends, when all is warm, by `moods`: codes, None for never."""

    def __init__(self, *moods: int | None) -> None:
        super().__init__()
        self._moods = list(moods)

    def _answer(self, command: Command) -> Command | None:
        told = super()._answer(command)
        if command.code != SEND or command.body == WARM.body or not self._moods:
            return told
        mood = self._moods.pop(0)
        if mood is None:
            return None
        return told if mood == 0 else reply(command, mood, "moody")

    @property
    def sends(self) -> list[Command]:
        """What came when all was warm."""
        return [each for each in self.commands if each.code == SEND and each.body != WARM.body]


@ALL_WAYS
def test_a_message_is_sent_and_its_result_told(send: Send) -> None:
    with Servers(Moody()) as servers:
        (result,) = send(servers.address, [Message(topic="t", body=b"x", message_id="ID")], [])
        assert isinstance(result, SendResult)
        assert (result.message_id, result.queue.topic) == ("ID", "t")
        assert servers.broker.bodies[-2:] == [WARM.body, b"x"]


@ALL_WAYS
def test_a_busy_broker_is_asked_again_for_the_same_message(send: Send) -> None:
    broker = Moody(ResponseCode.SYSTEM_BUSY)
    with Servers(broker) as servers:
        (result,) = send(servers.address, [Message(topic="t", body=b"x")], [])
    assert isinstance(result, SendResult)
    first, second = broker.sends
    assert first.ext_fields["i"] == second.ext_fields["i"], "one id"


@ALL_WAYS
def test_what_is_refused_raises_and_the_next_one_is_sent(send: Send) -> None:
    broker = Moody(ResponseCode.MESSAGE_ILLEGAL)
    with Servers(broker) as servers:
        messages = [Message(topic="t", body=b"x"), Message(topic="t", body=b"")]
        refused, empty, stored = send(servers.address, [*messages, messages[0]], [])
    assert isinstance(refused, Refused)
    assert isinstance(empty, MessageRefused)
    assert isinstance(stored, SendResult)
    assert len(broker.sends) == 2


@ALL_WAYS
def test_no_answer_is_a_time_out_within_the_time_that_was_given(send: Send) -> None:
    with Servers(Moody(None, None)) as servers:
        (outcome,) = send(servers.address, [Message(topic="t", body=b"x")], [], timeout=0.5)
    assert isinstance(outcome, RequestTimeout)


def test_the_only_one_of_many_fails_at_once_when_no_name_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A relay has other messages to send meanwhile, and comes back by itself."""

    def never(*_: object) -> None:
        raise AssertionError("it was tried without a route")

    async def scene() -> None:
        async with AsyncClient("127.0.0.1:1", settings=SETTINGS) as client:
            monkeypatch.setattr(client._engine.producer, "continue_send", never)
            (outcome,) = await client.send_many([Message(topic="t", body=b"x")])
            assert isinstance(outcome, Unavailable)
            assert client._engine.in_flight.count == 0

    run_scene(scene())


@ALL_WAYS
def test_hooks_see_what_is_sent_without_a_flow(send: Send) -> None:
    seen: list[object] = []

    class Sees(Middleware):
        def after_send(self, sending: Sending) -> None:
            seen.extend(sending.results)

    with Servers(Moody()) as servers:
        (result,) = send(servers.address, [Message(topic="t", body=b"x")], [Sees()])
    assert seen[-1:] == [result]


@ALL_WAYS
def test_a_flow_sends_the_same_frame(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        Message(topic="t", body=b"plain", message_id="A"),
        Message(
            topic="t",
            body=b"all of it",
            message_id="B",
            tag="paid",
            keys=("k", "l"),
            ordering_key="o",
            delay_level=2,
            flag=3,
            properties={"colour": "gr\u00fcn"},
        ),
    ]
    with Servers(Moody()) as servers:
        send(servers.address, messages, [])
        quick = list(servers.broker.commands)
        servers.broker.commands.clear()
        monkeypatch.setattr(AsyncEngine, "clear_link", lambda _, __: None)
        (by_task if send is by_task else by_thread)(servers.address, messages, [])
        general = servers.broker.commands

    def sends(commands: list[Command]) -> list[Command]:
        found = [each for each in commands if each.code == SEND and each.body != WARM.body]
        for command in found:
            del command.ext_fields["g"]  # when it was sent
            command.ext_fields["e"] = ""  # turns begin anywhere
            command.opaque = 0  # each connection has its own count
        return found

    first_tries, flows = sends(quick), sends(general)
    assert first_tries == flows
    assert len(flows) == 2


@ALL_WAYS
def test_a_signed_send_needs_no_flow_either(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Credentials(access_key="shop", secret_key="a secret", security_token="for a day")
    signed = msgspec.structs.replace(SETTINGS, credentials=account)
    monkeypatch.setattr(__name__ + ".SETTINGS", signed)
    flows: list[Message] = []
    in_a_flow = SendFlows.continue_send

    def noted(self: SendFlows, single: PendingSend, *outcome: Any) -> Flow[SendResult]:
        flows.append(single.out.message)
        return in_a_flow(self, single, *outcome)

    monkeypatch.setattr(SendFlows, "continue_send", noted)
    messages = [Message(topic="t", body=b"%d" % n, tag="paid", keys=("ü%d",)) for n in range(3)]
    with Servers(broker := Moody()) as servers:
        results = send(servers.address, messages, [])
        sends = broker.sends
    assert len(sends) == len(results) == 3
    assert {message.body for message in flows} <= {WARM.body}
    for command in sends:
        came = dict(command.ext_fields)
        Signing(account)(command)
        assert command.ext_fields == came


@pytest.mark.parametrize("directly", [False, True])
def test_a_thread_whose_client_is_closed_while_it_waits_is_told_so(*, directly: bool) -> None:
    broker = Moody(None, None)
    with Servers(broker) as servers, ThreadPoolExecutor(1) as pool:
        client = Client(servers.address, settings=SETTINGS)
        client.start()
        until(lambda: client.send(WARM) and client._engine.has_direct_links is directly)
        waiting = pool.submit(client.send, Message(topic="t", body=b"x"), timeout=60.0)
        until(lambda: bool(broker.sends))
        client.close()
        with pytest.raises(Unavailable):
            waiting.result(60)
        with pytest.raises(UsageError, match="closed"):
            client.send(WARM)


@ALL_WAYS
def test_a_defect_in_reading_an_answer_is_raised_where_the_message_was_sent(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SendFlows, "result_of_reply", defect)
    with Servers(Moody()) as servers, pytest.raises(ZeroDivisionError):
        send(servers.address, [WARM], [])
