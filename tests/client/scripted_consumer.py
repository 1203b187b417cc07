"""What tests of consumers share: a client that plays the world's part, and one queue to read."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from tests.client.script import Answer, World, group_of, says
from tests.waiting import run_scene

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.flow import Call, Flow
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record, pack_host
from reliable_mq.wire.record_encode import encode_record

T = TypeVar("T")

QUICK = ClientSettings(rebalance_retry_seconds=0.001)


class ScriptedClient:
    """Runs flows over a scripted world."""

    def __init__(self, world: World) -> None:
        self.hooks = Hooks((), ClientIdentity())
        self.world = world
        self.left: list[str] = []
        self.introductions = 0
        world.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(
            ResponseCode.CONSUMER_NOT_ONLINE
        )

    async def run(self, flow: Flow[T]) -> T:
        await asyncio.sleep(0)
        self.world.seconds = asyncio.get_running_loop().time()
        return self.world.play(flow)

    def lease_clock(self) -> float:
        return asyncio.get_running_loop().time() + self.world.asleep

    async def heartbeat(self) -> None:
        return None

    async def send_full_heartbeats(self) -> None:
        self.introductions += 1

    async def leave_group(self, group: ConsumerGroup) -> None:
        self.left.append(group.name)

    def reader_closed(self, reader: object) -> None:
        return None


async def consumed(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return [CONSUMED] * len(messages)


class Held:
    """A handler whose calls run until `may_end` is set."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        self.running.set()
        await self.may_end.wait()
        return [CONSUMED] * len(messages)


def grant_all(call: Call) -> Command:
    asked = msgspec.json.decode(call.command.body)["mqSet"]
    return reply(call.command, body=msgspec.json.encode({"lockOKMQSet": asked}))


def grant_none(call: Call) -> Command:
    return reply(call.command, body=b'{"lockOKMQSet":[]}')


def members(*client_ids: str) -> Answer:
    return says(body=msgspec.json.encode({"consumerIdList": client_ids}))


def record(offset: int, tag: str = "", *, sys_flag: int = 0, body: bytes = b"x") -> Record:
    """Return a record of topic t."""
    properties = {"UNIQ_KEY": f"ID{offset}", **({"TAGS": tag} if tag else {})}
    return Record(
        topic="t",
        body=body,
        properties=encode_properties(properties),
        queue_offset=offset,
        sys_flag=sys_flag,
        store_host=pack_host("127.0.0.1", 10911),
    )


def ext(next_offset: int, *, read_from: int = 0) -> dict[str, str]:
    """Return what a broker says with every pull."""
    return {
        "suggestWhichBrokerId": str(read_from),
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(max(100, next_offset)),
    }


def found(next_offset: int, *records: Record) -> Answer:
    """Return the answer to a pull that finds these."""
    return says(0, ext(next_offset), b"".join(map(encode_record, records)))


def answers_to_a_member(committed: int = 0) -> dict[int, Answer]:
    """Return what brokers say to the only member of a group, but for pulls."""
    return {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: members("client-a"),
        RequestCode.LOCK_BATCH_MQ: grant_all,
        RequestCode.UNLOCK_BATCH_MQ: says(),
        RequestCode.QUERY_CONSUMER_OFFSET: says(ext={"offset": str(committed)}),
        RequestCode.UPDATE_CONSUMER_OFFSET: says(),
        RequestCode.CONSUMER_SEND_MSG_BACK: says(),
    }


def world_with(pull: Answer) -> World:
    """Return the world of the only member of a group, with its answer to pulls."""
    return World(answers_to_a_member() | {RequestCode.PULL_MESSAGE: pull})


def reading(
    client: ScriptedClient,
    handler: AnyHandler,
    settings: ClientSettings = QUICK,
    *,
    ordered: bool = False,
    keys: Sequence[str] = ("",),
    **wishes: object,
) -> tuple[AsyncPushConsumer, AssignedQueue]:
    """Return a consumer with messages of one queue, by ordering key, which is not started."""
    subscription = Subscription(group="g", topics={"t": "*"}, ordered=ordered, **wishes)  # type: ignore[arg-type]
    group = group_of(client.world, subscription, queues={"a": 1}, settings=settings)
    assigned = group.assign(MessageQueue("t", "a", 0))
    assigned.start_at(0)
    assigned.lock_until(float("inf"))
    assigned.add_pulled(
        [message(assigned.queue, at, key) for at, key in enumerate(keys)], len(keys)
    )
    client.world.answers |= answers_to_a_member()
    return AsyncPushConsumer(client, group, handler), assigned


def message(queue: MessageQueue, offset: int, key: str = "") -> ReceivedMessage:
    stored = encode_properties(
        {"UNIQ_KEY": f"ID{offset}", **({"__SHARDINGKEY": key} if key else {})}
    )
    record = Record(topic=queue.topic, body=b"x", properties=stored, queue_offset=offset)
    return received(record, queue)


play = run_scene
