"""Requests and replies as values: what marks them, what is none, and what a broker brings."""

import asyncio
from functools import partial
from typing import TypeVar

import pytest
from tests.client.script import World, random_bytes, route_table, says
from tests.client.test_compression import LONG
from tests.client.test_producer import STORED, world_of
from tests.waiting import eventually, run_scene

from reliable_mq.client.flow import Call, Flow
from reliable_mq.client.sending.asyncio_requests import AsyncRequests
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.request_reply import (
    correlation_of,
    read_reply,
    reply_to,
    request_of,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConnectionLost,
    MessageRefused,
    ProtocolError,
    RemoteError,
    ReplyTimeout,
    RequestTimeout,
    UsageError,
)
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.compression import compress, flags_of
from reliable_mq.wire.headers import PushReplyHeader
from reliable_mq.wire.properties import decode_properties, encode_properties

T = TypeVar("T")

ASKED = {"CLUSTER": "c", "CORRELATION_ID": "7", "REPLY_TO_CLIENT": "me", "TTL": "3000"}
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
RESULT = SendResult(
    status=SendStatus.SEND_OK,
    message_id="ID",
    offset_message_id="X",
    queue=MessageQueue("t", "a", 0),
    queue_offset=0,
)


def received(**properties: str) -> ReceivedMessage:
    queue = MessageQueue("t", "a", 0)
    return ReceivedMessage(
        topic="t", body=b"?", message_id="ID", queue=queue, queue_offset=0, properties=properties
    )


def pushed(correlation_id: str, body: bytes = b"re", sys_flag: int = 0) -> Command:
    properties = {"CORRELATION_ID": correlation_id, "KEYS": "a b", "TAGS": "ok", "UNIQ_KEY": "R"}
    header = PushReplyHeader(
        producer_group="g",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=sys_flag,
        born_timestamp=5,
        flag=0,
        properties=encode_properties(properties).decode(),
        unit_mode=False,
        born_host="127.0.0.1:1",
        store_host="127.0.0.1:2",
        store_timestamp=6,
    )
    return request(PUSH, header.to_ext(), body)


def test_a_request_says_who_waits_and_how_long() -> None:
    asked = request_of(Message(topic="t", body=b"x", properties={"a": "b"}), "me", "7", 1.5)
    assert asked.properties == {
        "a": "b",
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "me",
        "TTL": "1500",
    }


def test_a_reply_goes_to_the_clusters_own_topic_and_names_the_request() -> None:
    answer = reply_to(received(**ASKED, other="1"), b"re", "ok", {"mine": "2"})
    assert (answer.topic, answer.body, answer.tag) == ("c_REPLY_TOPIC", b"re", "ok")
    assert answer.properties == {
        "mine": "2",
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "me",
        "TTL": "3000",
        "MSG_TYPE": "reply",
    }


@pytest.mark.parametrize("lost", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_is_no_request_is_not_answered(lost: str) -> None:
    properties = {name: value for name, value in ASKED.items() if name != lost}
    with pytest.raises(UsageError, match=f"has no property {lost}"):
        reply_to(received(**properties), b"re", "", {})


def test_a_cluster_that_makes_no_topic_is_not_believed() -> None:
    with pytest.raises(UsageError, match="invalid property CLUSTER"):
        reply_to(received(**{**ASKED, "CLUSTER": "a b"}), b"re", "", {})


def test_a_reply_is_sent_by_a_code_of_its_own_and_by_another_broker_if_one_knows_no_asker() -> None:
    world, _ = world_of({"c_REPLY_TOPIC": {"a": 1, "b": 1}})
    asked: list[str] = []

    def only_b(call: Call) -> Command:
        asked.append(call.address)
        if call.address == "b:10911":
            return says(ext=STORED)(call)
        return reply(call.command, ResponseCode.SYSTEM_ERROR, "channel of <me> not found")

    world.answers[REPLY] = only_b
    producer = SendFlows(ClientSettings(), route_table(), random_bytes)
    answer = reply_to(received(**ASKED), b"re", "", {})
    for _ in range(2):
        world.play(producer.send_reply(answer, timeout=3.0))
    assert set(asked) == {"a:10911", "b:10911"}
    header = world.calls_of(REPLY)[0].command.ext_fields
    assert decode_properties(header["i"])["CORRELATION_ID"] == "7"


def test_a_reply_that_nobody_waits_for_is_an_error() -> None:
    world, _ = world_of({"c_REPLY_TOPIC": {"a": 1}})
    world.answers[REPLY] = says(ResponseCode.SYSTEM_ERROR, remark="channel of <me> not found")
    producer = SendFlows(ClientSettings(), route_table(), random_bytes)
    with pytest.raises(RemoteError, match="not found"):
        world.play(producer.send_reply(reply_to(received(**ASKED), b"x", "", {}), timeout=3.0))


def test_a_pushed_reply_is_a_message() -> None:
    assert correlation_of(pushed("7")) == "7"
    message = World().play(read_reply(pushed("7")))
    assert (message.body, message.tag, message.keys, message.message_id) == (
        *(b"re", "ok", ("a", "b"), "R"),
    )
    assert (message.queue, message.queue_offset) == (MessageQueue("c_REPLY_TOPIC", "", 1), -1)
    assert (message.born_time_ms, message.store_time_ms) == (5, 6)


def test_a_compressed_reply_is_unpacked_and_a_large_one_elsewhere() -> None:
    world = World()
    small = pushed("7", compress(LONG, "lz4"), flags_of("lz4"))
    assert world.play(read_reply(small)).body == LONG
    noise = b"".join(at.to_bytes(4) for at in range(20_000))
    large = pushed("7", compress(noise, "zlib"), flags_of("zlib"))
    assert world.play(read_reply(large)).body == noise
    assert world.works == 1
    with pytest.raises(ProtocolError, match="damaged"):
        world.play(read_reply(pushed("7", b"zlib?", flags_of("zlib"))))


class Desk:
    """Asks by a broker that the test plays; `sent` are its requests."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.known = 0
        self.numbers = iter(range(100))
        self.asking = AsyncRequests("me", self._random, self._run, self._be_known)

    async def ask(self, timeout: float = 5.0, error: Exception | None = None) -> ReceivedMessage:
        return await self.asking.ask(
            Message(topic="t", body=b"?"), timeout, partial(self._send, error)
        )

    def bring(self, correlation_id: str, body: bytes = b"re") -> Command:
        return self.asking.answered("a:10911", pushed(correlation_id, body))

    def _random(self, count: int) -> bytes:
        return next(self.numbers).to_bytes(count)

    async def _be_known(self) -> None:
        self.known += 1

    async def _run(self, flow: Flow[T]) -> T:
        return World().play(flow)

    async def _send(self, error: Exception | None, message: Message, left: float) -> SendResult:
        assert self.known == 1, "brokers hear who asks before anybody can answer"
        self.sent.append(message)
        if error is not None:
            raise error
        return RESULT


def scene_of(scene: object) -> None:
    run_scene(scene)  # type: ignore[arg-type]


def test_each_reply_finds_its_own_request() -> None:
    async def scene() -> None:
        desk = Desk()
        asking = [asyncio.create_task(desk.ask()) for _ in range(3)]
        await eventually(lambda: len(desk.sent) >= 3)
        ids = [message.properties["CORRELATION_ID"] for message in desk.sent]
        for each in reversed(ids):
            assert desk.bring(each, each.encode()).code == ResponseCode.SUCCESS
        replies = await asyncio.gather(*asking)
        assert [answer.body.decode() for answer in replies] == ids
        assert desk.asking._waiting == {}

    scene_of(scene())


def test_without_a_reply_in_time_a_request_fails_and_a_late_reply_is_let_go() -> None:
    async def scene() -> None:
        desk = Desk()
        with pytest.raises(ReplyTimeout, match="no reply to a request"):
            await desk.ask(0.01)
        late = desk.bring(desk.sent[0].properties["CORRELATION_ID"])
        assert late.code == ResponseCode.SUCCESS
        assert desk.asking._waiting == {}

    scene_of(scene())


def test_a_request_that_is_not_sent_waits_for_nothing() -> None:
    async def scene() -> None:
        desk = Desk()
        for error in (MessageRefused("no"), ConnectionLost("gone"), RequestTimeout("late")):
            with pytest.raises(type(error)):
                await desk.ask(error=error)
        assert desk.asking._waiting == {}

    scene_of(scene())


def test_a_reply_that_does_not_read_is_refused_and_one_that_comes_twice_is_one() -> None:
    async def scene() -> None:
        desk = Desk()
        asking = asyncio.create_task(desk.ask())
        await eventually(lambda: desk.sent)
        assert desk.asking.answered("a:1", request(PUSH)).code == ResponseCode.SYSTEM_ERROR
        assert desk.bring("").code == ResponseCode.SYSTEM_ERROR
        each = desk.sent[0].properties["CORRELATION_ID"]
        assert desk.bring(each, b"first").code == ResponseCode.SUCCESS
        assert desk.bring(each, b"second").code == ResponseCode.SUCCESS
        assert (await asking).body == b"first"

    scene_of(scene())
