"""Processor time of one message in a push consumer, from the bytes of a pull to its end.

No broker and no socket: pulls are answered with bytes that were made before. What is left is what
the client itself does for a message, to be compared before and after a change.

    python -m bench.consumer_cost [--messages 200000] [--profile]
"""

import argparse
import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import uvloop

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call, CallAll, Flow, Instant, Now, Once, Together
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.runtime.lease_clock import lease_clock
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command, encode_command, reply
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record, pack_host
from reliable_mq.wire.record_encode import encode_record

T = TypeVar("T")

QUEUES = 8
PULL = 32
BODY = b"x" * 1024
NAME_SERVER = "127.0.0.1:1"


def record(queue_id: int, offset: int, *, keyed: bool) -> bytes:
    """Return one stored message, with the properties that producers of ours send."""
    properties = {"UNIQ_KEY": f"{offset:032X}", "WAIT": "true", "CLUSTER": "DefaultCluster"}
    if keyed:
        properties["__SHARDINGKEY"] = f"key-{offset % 50}"
    return encode_record(
        Record(
            topic="bench",
            body=BODY,
            properties=encode_properties(properties),
            queue_id=queue_id,
            queue_offset=offset,
            commit_log_offset=offset * 1200,
            store_host=pack_host("127.0.0.1", 10911),
        )
    )


class FedClient:
    """Answers the flows of a consumer: pulls by what was made before, the rest by yes."""

    def __init__(self, count: int, *, keyed: bool) -> None:
        self._count = count
        self.lease_clock = lease_clock()
        self._bodies = [
            b"".join(record(0, offset, keyed=keyed) for offset in range(at, at + PULL))
            for at in range(0, count, PULL)
        ]

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""
        answer: Any = None
        try:
            while True:
                step = flow.send(answer)
                if isinstance(step, Now):
                    now = asyncio.get_running_loop().time()
                    answer = Instant(now, time.time_ns() // 1_000_000, self.lease_clock())
                elif isinstance(step, Call):
                    answer = await self._call(step.command)
                elif isinstance(step, CallAll):
                    answer = [await self._call(call.command) for call in step.calls]
                elif isinstance(step, Once):
                    answer = await self.run(step.flow())
                elif isinstance(step, Together):
                    answer = [await self.run(flow) for flow in step.flows]
                else:
                    answer = None
        except StopIteration as end:
            result: T = end.value
            return result

    async def heartbeat(self) -> None:
        """Nobody is told."""

    async def send_full_heartbeats(self) -> None:
        """Nobody is told."""

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Nobody is left."""

    async def _call(self, command: Command) -> Command:
        await asyncio.sleep(0)
        answer = reply(command)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer.body = _route()
        elif command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            answer.body = msgspec.json.encode({"consumerIdList": ["me"]})
        elif command.code == RequestCode.LOCK_BATCH_MQ:
            asked = msgspec.json.decode(command.body)["mqSet"]
            answer.body = msgspec.json.encode({"lockOKMQSet": asked})
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            answer.ext_fields = {"offset": "0"}
        elif command.code == RequestCode.PULL_MESSAGE:
            await self._pull(command, answer)
        (frame,) = FrameReader().feed(encode_command(answer))
        return decode_command(frame)

    async def _pull(self, command: Command, answer: Command) -> None:
        header = PullMessageHeader.decode(command.ext_fields)
        at = header.queue_offset // PULL
        if header.topic != "bench" or at >= len(self._bodies):
            await asyncio.sleep(3600)
        answer.body = self._bodies[at]
        answer.ext_fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str((at + 1) * PULL),
            "minOffset": "0",
            "maxOffset": str(self._count),
        }


def _route() -> bytes:
    queues = {"brokerName": "a", "perm": 6, "topicSysFlag": 0}
    return msgspec.json.encode(
        {
            "brokerDatas": [
                {"brokerAddrs": {"0": "127.0.0.1:2"}, "brokerName": "a", "cluster": "c"}
            ],
            "queueDatas": [{**queues, "readQueueNums": QUEUES, "writeQueueNums": QUEUES}],
        }
    )


async def consume(count: int, *, ordered: bool) -> float:
    """Return the microseconds of processor that each of `count` messages takes."""
    each = count // QUEUES // PULL * PULL
    client = FedClient(each, keyed=ordered)
    settings = ClientSettings()
    routes = RouteCache(NameServers((NAME_SERVER,), 3.0), 4, 30.0)
    subscription = Subscription(group="g", topics={"bench": "*"}, ordered=ordered)
    group = ConsumerGroup(
        subscription,
        1,
        "me",
        settings=settings,
        routes=routes,
        producer=SendFlows(settings, routes, bytes),
    )
    finished = asyncio.Event()
    left = each * QUEUES

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        nonlocal left
        left -= len(messages)
        if left <= 0:
            finished.set()
        return [CONSUMED] * len(messages)

    consumer = AsyncPushConsumer(client, group, handle)
    begun = time.process_time()
    await consumer.start()
    await finished.wait()
    seconds = time.process_time() - begun
    await consumer.close()
    return seconds / (each * QUEUES) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description="Processor time of a message in a consumer.")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    for ordered in (False, True):
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        cost = uvloop.run(consume(options.messages, ordered=ordered))
        profile.disable()
        kind = "ordered, 50 keys a queue" if ordered else "concurrent"
        print(f"{kind:28} {cost:8.2f} us of processor each", flush=True)
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
