"""Calls that one request to the broker of the process answers: no task waits for them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import wraps
from typing import Any

from tests.gateway.fake_cluster import BROKER, NAMES, FakeCluster

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.asyncio_upstream import Begun, OnAnswer
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.renewals import Held
from reliable_mq.runtime.grpc_calls import Calls
from reliable_mq.runtime.grpc_direct import DirectBroker
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.pop_handle import parse_handle
from reliable_mq.wire.pop_headers import ReadAckHeader

HANDLE = f"7 {2**42} 60000 3 0 b 0 7 1007"


def on_loop(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """Run a test on a loop of its own."""

    @wraps(test)
    def run(self: Any) -> None:
        asyncio.run(test(self))

    return run


class Broker:
    """The broker of the process: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Command, OnAnswer]] = []
        self.handed_over = 0

    def reaches(self, address: str) -> bool:
        return address == BROKER

    def tell(self, host: str, command: Command, timeout: float, on_answer: OnAnswer) -> None:
        assert timeout > 0
        self.told.append((host, command, on_answer))

    def hand_over(self, number: int) -> None:
        self.handed_over += number


class Connection:
    """Keeps the answers of calls."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def respond(self, stream: Any, response: Any) -> None:
        kind = TYPES[f"{stream}Response"]
        self.answers.append(kind.FromString(response.SerializeToString()))


class World:
    """Calls of one client at a gateway that has the broker in its process."""

    def __init__(self, authenticate: Any = None) -> None:
        self.cluster, self.broker = FakeCluster(), Broker()
        self.gateway = Gateway(self.cluster.ask, [NAMES], "test")
        self.calls = Calls(self.gateway, authenticate, teller=self.broker)
        self.connection: Any = Connection()

    async def known(self) -> "World":
        """Let the gateway learn what a call needs to know of the topic."""
        await self.gateway.upstream.route("orders")
        await self.gateway.upstream.kinds("orders")
        self.cluster.asked.clear()
        return self

    def call(self, name: str, **fields: Any) -> None:
        call = TYPES[f"{name}Request"](**fields)
        caller = Caller("client-1", "10.0.0.1", {}, float("inf"))
        stream: Any = name
        data: bytes = call.SerializeToString()
        body = b"\0" + len(data).to_bytes(4) + data
        if not self.calls.answer_usual(self.connection, stream, name, caller, body):
            self.calls.answer(self.connection, stream, name, caller, call, None)

    def acknowledge(self, *handles: str) -> None:
        entries = [{"message_id": "ID7", "receipt_handle": handle} for handle in handles]
        names = {"group": {"name": "g"}, "topic": {"name": "orders"}}
        self.call("AckMessage", **names, entries=entries)

    def send(self, topic: str = "orders") -> None:
        system = {"message_id": "ID1", "message_type": 1}
        message = {"topic": {"name": topic}, "body": b"x", "system_properties": system}
        self.call("SendMessage", messages=[message])

    async def answer(self) -> Any:
        """Return the answer of the only call."""
        for _ in range(20):
            await asyncio.sleep(0)
        (found,) = self.connection.answers
        return found


async def world(authenticate: Any = None) -> World:
    return await World(authenticate).known()


class TestOneRequest:
    @on_loop
    async def test_an_acknowledgement_is_told_to_the_broker_for_its_client(self) -> None:
        at = await world()
        at.acknowledge(HANDLE)
        ((host, command, on_answer),) = at.broker.told
        assert (host, command.code) == ("10.0.0.1", Ask.ACK_MESSAGE)
        header = command.ack_header
        assert isinstance(header, ReadAckHeader)
        assert (header.consumer_group, header.topic, header.queue_id) == ("g", "orders", 0)
        assert (header.extra_info, header.offset) == (HANDLE, 7)
        assert header.handle._replace(offset=7) == parse_handle(HANDLE)
        assert at.connection.answers == []
        on_answer(reply(command))
        (found,) = at.connection.answers
        assert [found.status.code, found.entries[0].status.code] == [Code.OK, Code.OK]
        (entry,) = found.entries
        assert (entry.message_id, entry.receipt_handle) == ("ID7", HANDLE)
        assert [found.status.message, entry.status.message] == ["OK", "OK"]
        assert at.cluster.asked == []
        assert at.calls.ended == {("AckMessage", Code.OK): 1}

    @on_loop
    async def test_a_send_is_told_to_the_broker(self) -> None:
        at = await world()
        at.send()
        ((_, command, on_answer),) = at.broker.told
        assert (command.code, command.body) == (Ask.SEND_MESSAGE_V2, b"x")
        assert command.send_header is not None
        assert command.send_header.topic == "orders"
        on_answer(reply(command, ext={"msgId": "A" * 32, "queueOffset": "9"}))
        found = await at.answer()
        assert (found.status.code, found.entries[0].offset) == (Code.OK, 9)
        assert found.entries[0].message_id == "ID1"

    @on_loop
    async def test_what_was_told_is_handed_over_once(self) -> None:
        at = await world()
        at.acknowledge(HANDLE)
        at.acknowledge(HANDLE)
        at.calls.hand_over(5)
        at.calls.hand_over(5)
        assert at.broker.handed_over == 5

    @on_loop
    async def test_a_refusal_of_the_broker_is_that_of_the_message(self) -> None:
        at = await world()
        at.acknowledge(HANDLE)
        ((_, command, on_answer),) = at.broker.told
        on_answer(reply(command, ResponseCode.NO_MESSAGE, "offset is illegal"))
        found = await at.answer()
        assert found.entries[0].status.message.endswith("offset is illegal")
        assert found.status.code == found.entries[0].status.code != Code.OK

    @on_loop
    async def test_a_broker_that_does_not_answer_gives_what_a_task_would_give(self) -> None:
        for error, code in (
            (RequestTimeout("late"), Code.PROXY_TIMEOUT),
            (ConnectionLost("gone"), Code.INTERNAL_SERVER_ERROR),
        ):
            at = await world()
            at.send()
            ((*_, on_answer),) = at.broker.told
            on_answer(error)
            found = await at.answer()
            assert (found.status.code, found.status.message) == (code, str(error))

    @on_loop
    async def test_an_answer_that_cannot_be_read_is_a_fault_of_ours(self) -> None:
        at = await world()
        nothing = dict[int, str]()
        fault = Begun(BROKER, request(Ask.ACK_MESSAGE), lambda answer: nothing[answer.code])
        at.gateway.usual = {"AckMessage": lambda _caller, _body: fault}
        at.acknowledge(HANDLE)
        ((_, command, on_answer),) = at.broker.told
        on_answer(reply(command))
        assert (await at.answer()).status.code == Code.INTERNAL_SERVER_ERROR


class TestOthers:
    @on_loop
    async def test_a_task_answers_what_is_not_known_yet(self) -> None:
        at = World()
        at.acknowledge(HANDLE)
        assert (await at.answer()).status.code == Code.OK
        assert at.broker.told == []
        assert at.cluster.of(Ask.ACK_MESSAGE)[0]["offset"] == "7"

    @on_loop
    async def test_a_task_answers_what_is_refused(self) -> None:
        at = await world()
        at.acknowledge("no handle")
        found = await at.answer()
        assert found.entries[0].status.code == Code.INTERNAL_SERVER_ERROR
        at = await world()
        at.acknowledge("7 1 60000 3 0 b 0 7 1007")
        found = await at.answer()
        assert found.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
        assert at.broker.told == []

    @on_loop
    async def test_a_task_answers_several_acknowledgements(self) -> None:
        at = await world()
        at.acknowledge(HANDLE, HANDLE)
        assert len((await at.answer()).entries) == 2
        assert at.broker.told == []

    @on_loop
    async def test_a_task_answers_what_is_renewed(self) -> None:
        at = await world()
        ACTING.set(Acting("10.0.0.1"))
        settings = {"subscription": {"group": {"name": "g"}}, "client_type": 2}
        session = at.gateway.sessions.put("client-1", TYPES["Settings"](**settings), 0.0)
        key = ("g", "ID7", HANDLE)
        held = session.held[key] = Held(session, key, "orders", 1, 0)
        newest = HANDLE.replace("60000", "90000")
        held.renewed(newest)
        ACTING.set(None)
        calls = at.calls
        at.acknowledge(HANDLE)
        assert (at.broker.told, calls._running != set()) == ([], True)
        await at.answer()
        assert at.cluster.of(Ask.ACK_MESSAGE)[0]["extraInfo"] == newest

    @on_loop
    async def test_a_task_answers_where_clients_sign(self) -> None:
        async def nobody(caller: Caller) -> Any:
            del caller

        at = await world(nobody)
        at.acknowledge(HANDLE)
        await at.answer()
        assert at.broker.told == []

    @on_loop
    async def test_a_task_answers_what_another_broker_has(self) -> None:
        at = await world()
        at.broker.reaches = lambda address: address != BROKER  # type: ignore[method-assign]
        at.send()
        await at.answer()
        assert at.broker.told == []
        assert at.cluster.counts[Ask.SEND_MESSAGE_V2] == 1


class Listener:
    """Numbers connections."""

    def __init__(self) -> None:
        self.connections: dict[int, Any] = {}

    def opened(self, connection: Any, host: str) -> int:
        del host
        self.connections[1] = connection
        return 1

    def closed(self, connection: PeerConnection) -> None:
        del self.connections[connection.id]


class Server:
    """Answers requests at once, and keeps how many came together."""

    def __init__(self) -> None:
        self.listener, self.turns = Listener(), list[int]()
        self.direct: DirectBroker

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        assert connection.address == "10.0.0.1:0"
        found = list(commands)
        self.turns.append(len(found))
        self.direct.send([encode_answer(reply(each)) for each in found])
        return False


def direct() -> tuple[Server, DirectBroker]:
    server: Any = Server()
    server.direct = DirectBroker(server, lambda _address, _command: None, lambda: None, BROKER)
    return server, server.direct


class TestDirectBroker:
    @on_loop
    async def test_answers_are_there_when_requests_of_one_connection_are_handed_over(self) -> None:
        server, broker = direct()
        answers: list[Any] = []
        for _ in range(3):
            broker.tell("10.0.0.1", request(Ask.ACK_MESSAGE, {}), 3.0, answers.append)
        assert server.turns == []
        broker.hand_over(1)
        assert server.turns == [3]
        assert [each.code for each in answers] == [0, 0, 0]

    @on_loop
    async def test_requests_of_many_connections_share_a_turn(self) -> None:
        server, broker = direct()
        answers: list[Any] = []
        for number in range(1, 7):
            broker.tell("10.0.0.1", request(Ask.ACK_MESSAGE, {}), 3.0, answers.append)
            broker.hand_over(number)
        assert server.turns == [1, 1]
        await asyncio.sleep(0)
        assert server.turns == [1, 1, 4]
        assert len(answers) == 6

    @on_loop
    async def test_a_broker_that_stops_fails_what_waits_and_takes_no_more(self) -> None:
        _, broker = direct()
        answers: list[Any] = []
        broker.tell("10.0.0.1", request(Ask.ACK_MESSAGE, {}), 3.0, answers.append)
        assert broker.reaches(BROKER)
        broker.close()
        assert [type(each) for each in answers] == [ConnectionLost]
        assert not broker.reaches(BROKER)

    @on_loop
    async def test_an_answer_that_does_not_come_is_a_timeout(self) -> None:
        _, broker = direct()
        came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broker.tell("10.0.0.1", request(Ask.ACK_MESSAGE, {}), 0.01, came.set_result)
        wait: Awaitable[Any] = asyncio.wait_for(came, 10)
        assert isinstance(await wait, RequestTimeout)
