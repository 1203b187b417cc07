"""What a broker costs as its topics and queues grow; ours alone.

`broker_scale` runs these; see there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.quiet import resident_mib, used_seconds
from bench.reliable_mq_broker import ReliableMQBroker
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message
from reliable_mq.runtime.link import Link
from reliable_mq.runtime.links import Links
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request

GROUP = "watch"
BODY = b"x" * 1024
SENDS = 20_000
AT_ONCE = 64
CREATED = 100  # topics, one after another, to measure what one costs
WATCH_SECONDS = 22.0  # two checkpoints, four saves of offsets, and with this setting two
WATCHED = {"registerNameServerPeriod": "10000"}  # registrations of all topics
PROBE_SECONDS = 0.002

Measured = tuple[str, float, str]


def topics(directory: Path, counts: Sequence[int]) -> Iterator[Measured]:
    """Sends and creations among few and among many topics, and what stands still meanwhile."""
    for count in counts:
        broker = ReliableMQBroker(directory / f"topics-{count}", "ASYNC_FLUSH", settings=WATCHED)
        with broker:
            for what, value, unit in asyncio.run(_with_topics(broker, count, 1)):
                yield f"{what}, {count:,} topics", value, unit
        begin = time.monotonic()
        with broker:
            yield f"start, {count:,} topics", time.monotonic() - begin, "s"


def queues(directory: Path) -> Iterator[Measured]:
    """The same with few and many queues of one topic, and of a thousand topics."""
    for topic_count, queue_count in ((1, 8), (1, 10_000), (1_000, 10)):
        of = f"{topic_count:,} topics of {queue_count:,} queues"
        path = directory / f"queues-{topic_count}-{queue_count}"
        with ReliableMQBroker(path, "ASYNC_FLUSH", settings=WATCHED) as broker:
            for what, value, unit in asyncio.run(_with_topics(broker, topic_count, queue_count)):
                yield f"{what}, {of}", value, unit


async def _with_topics(broker: ReliableMQBroker, count: int, queue_count: int) -> list[Measured]:
    pids = broker.pids
    found: list[Measured] = []
    names = [f"scale-{number}" for number in range(count)]
    gate = asyncio.Semaphore(AT_ONCE)
    async with AsyncClient(broker.name_server_address) as client, _links() as links:

        async def create(name: str, queues: int = queue_count) -> None:
            ext = {
                "topic": name,
                "defaultTopic": "TBW102",
                "perm": "6",
                "order": "false",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
            }
            async with gate:
                await _ask(links, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

        async def send(number: int) -> None:
            async with gate:
                await client.send(Message(topic=names[number % count], body=BODY))

        begin = time.monotonic()
        await asyncio.gather(*map(create, names))
        found.append(("creations a second", count / (time.monotonic() - begin), "1/s"))
        used, begin = used_seconds(pids), time.monotonic()
        for number in range(CREATED):
            await create(f"one-more-{number}", 1)
        found.append(("a creation", (time.monotonic() - begin) / CREATED * 1e3, "ms"))
        used = used_seconds(pids) - used
        found.append(("processor time of a creation", used / CREATED * 1e3, "ms"))
        await asyncio.gather(*(send(number) for number in range(count * queue_count)))
        used = used_seconds(pids)
        await asyncio.gather(*(send(number) for number in range(SENDS)))
        used = used_seconds(pids) - used
        found.append(("processor time of a send", used / SENDS * 1e6, "us"))
        found.append(("resident", resident_mib(pids[0]), "MiB"))
        gap, used = await _watch(broker, links, names, queue_count)
        found.append(("longest wait for an answer", gap * 1e3, "ms"))
        found.append(("processors while almost nothing comes", used, ""))
    return found


async def _watch(
    broker: ReliableMQBroker, links: Links, names: list[str], queue_count: int
) -> tuple[float, float]:
    """Return how long an answer took at most, and the processor time that a second took.

    One commit is under way at a time, of another queue each, while the broker registers, saves
    and makes checkpoints.
    """
    group = msgspec.json.encode({"groupName": GROUP})
    await _ask(links, broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    longest, used, begin = 0.0, used_seconds(broker.pids), time.monotonic()
    number = 0
    while time.monotonic() < begin + WATCH_SECONDS:
        number += 1
        ext = {
            "consumerGroup": GROUP,
            "topic": names[number % len(names)],
            "queueId": str(number // len(names) % queue_count),
            "commitOffset": "0",
        }
        asked = time.monotonic()
        await _ask(links, broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        longest = max(longest, time.monotonic() - asked)
        await asyncio.sleep(PROBE_SECONDS)
    return longest, (used_seconds(broker.pids) - used) / (time.monotonic() - begin)


async def _ask(
    links: Links, address: str, code: int, ext: dict[str, str], body: bytes = b""
) -> Command:
    answer = await links.call(address, request(code, ext, body), 10.0)
    if answer.code:
        raise RuntimeError(f"{code}: {answer.code} {answer.remark}")
    return answer


@contextlib.asynccontextmanager
async def _links() -> AsyncIterator[Links]:
    async def greet(_address: str, _link: Link) -> None:
        pass

    links = Links(
        connect_timeout=3.0,
        on_request=lambda _address, _command: None,
        greet=greet,
        on_lost=lambda _address: None,
    )
    try:
        yield links
    finally:
        await links.close()
