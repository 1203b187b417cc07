"""Consumers by the queue beside consumers by the message: what is better for whom.

All members are clients of one process, at one broker with a topic of 4 queues, without order.

- share: 20 members, one handler call at a time each; one takes 100 times as long. How evenly do the
  others share the work, and how much do they do?
- moves: 4 members; every 2 s one leaves and one joins. How long does a message wait?
- deploy: two members by the queue are replaced by such of the other way, one after the other.
- quick: one member with a handler that does nothing: how many messages a second?
- idle: one message after another: how long from the send to the handler?
- applied: one worker of `@mq.consumer` with PostgreSQL; its handler writes one row (quick), and
  waits 300 ms for each twentieth message (mixed).
- killed: two such workers, 40 messages a second; one is killed while both have many.
  How long do messages wait?

    python -m bench.by_message [--broker ours|apache] [--seconds 10] [--only share moves quick …]
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import msgspec
import uvloop

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.by_message_workers import QUEUES, Figures, applied, killed
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import scale_table
from reliable_mq import (
    AsyncClient,
    ClientSettings,
    Consumed,
    Message,
    ReceivedMessage,
    Subscription,
)

MODES = ("queue", "message")
MEMBERS = 20
HANDLER_SECONDS = 0.02
SLOW_FACTOR = 100
BODY = b"x" * 1024
_NAMES = itertools.count(1)

Handle = Callable[[Sequence[ReceivedMessage]], Coroutine[Any, Any, Consumed]]


def wanted(mode: str, topic: str, concurrency: int) -> Subscription:
    """Return the subscription of a member."""
    return Subscription(
        group=f"{topic}-{mode}",
        topics={topic: "*"},
        ordered=False,
        by=mode,  # type: ignore[arg-type]
        concurrency=concurrency,
    )


@asynccontextmanager
async def member(address: str, number: int) -> AsyncIterator[AsyncClient]:
    """Give a client whose place in the order of its group is known."""
    settings = ClientSettings(instance_name=f"m{number:02}", close_timeout_seconds=5.0)
    async with AsyncClient(address, settings=settings) as client:
        yield client


async def preload(address: str, count: int) -> str:
    """Create a topic with so many messages; return its name."""
    topic = f"by-message-{next(_NAMES)}"
    async with AsyncClient(address) as client:
        await client.create_topic(topic, QUEUES)
        for at in range(0, count, 1000):
            many = min(1000, count - at)
            await client.send_many([Message(topic=topic, body=BODY) for _ in range(many)])
    return topic


async def share(address: str, mode: str, seconds: float) -> Figures:
    """Twenty members on four queues, one of them slow."""
    fast = (MEMBERS - 1) / HANDLER_SECONDS
    topic = await preload(address, int(fast * seconds * 1.5))
    counts = [0] * MEMBERS

    def handler(number: int) -> Handle:
        pause = HANDLER_SECONDS * (SLOW_FACTOR if number == 0 else 1)

        async def handle(_: Sequence[ReceivedMessage]) -> Consumed:
            await asyncio.sleep(pause)
            counts[number] += 1
            return Consumed()

        return handle

    async with AsyncExitStack() as stack:
        for number in range(MEMBERS):
            client = await stack.enter_async_context(member(address, number))
            await client.consume(wanted(mode, topic, 1), handler(number))
        await asyncio.sleep(3.0)  # all have joined
        counts[:] = [0] * MEMBERS
        begun = time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - begun
        seen = list(counts)
    others = seen[1:]
    each = mean(others) or 1.0
    furthest = max(abs(count - each) for count in others) / each
    return [
        {"what": "share: handled", "value": round(sum(seen) / took), "unit": "messages/s"},
        {"what": "share: members that work", "value": sum(map(bool, seen)), "unit": "of 20"},
        {"what": "share: furthest from the mean", "value": round(furthest * 100), "unit": "%"},
    ]


async def moves(address: str, mode: str, seconds: float) -> Figures:
    """Members come and go while messages are sent."""
    topic = await preload(address, 0)
    waits: list[float] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        waits.append(time.time() - float(messages[0].body))
        return Consumed()

    async with AsyncClient(address) as sender, AsyncExitStack() as last:
        members: list[AsyncExitStack] = []

        async def join(number: int) -> None:
            stack = await last.enter_async_context(AsyncExitStack())
            client = await stack.enter_async_context(member(address, number))
            await client.consume(wanted(mode, topic, 8), handle)
            members.append(stack)

        for number in range(4):
            await join(number)
        await asyncio.sleep(3.0)
        ends = time.monotonic() + seconds
        number, next_move = 4, time.monotonic() + 2.0
        moving: list[asyncio.Task[None]] = []
        while time.monotonic() < ends:
            await sender.send(Message(topic=topic, body=repr(time.time()).encode()))
            await asyncio.sleep(0.004)
            if time.monotonic() >= next_move:
                next_move += 2.0
                moving.append(asyncio.create_task(members.pop(0).aclose()))
                moving.append(asyncio.create_task(join(number)))
                number += 1
        await asyncio.gather(*moving)
        await asyncio.sleep(5.0)
    return [
        {"what": "moves: half wait", "value": round(median(waits) * 1000, 1), "unit": "ms at most"},
        {
            "what": "moves: 99 of 100 wait",
            "value": round(quantiles(waits, n=100)[98] * 1000, 1),
            "unit": "ms at most",
        },
        {"what": "moves: the longest wait", "value": round(max(waits) * 1000), "unit": "ms"},
    ]


async def deploy(address: str, mode: str, seconds: float) -> Figures:
    """Two members by the queue are replaced one after the other, while messages are sent."""
    topic = await preload(address, 0)
    seen: Counter[bytes] = Counter()
    group = f"{topic}-deploy"

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        seen[messages[0].body] += 1
        return Consumed()

    async with AsyncClient(address) as sender, AsyncExitStack() as last:

        async def join(number: int, by: str) -> AsyncExitStack:
            stack = await last.enter_async_context(AsyncExitStack())
            client = await stack.enter_async_context(member(address, number))
            subscription = msgspec.structs.replace(wanted(by, topic, 8), group=group)
            await client.consume(subscription, handle)
            return stack

        members = [await join(number, "queue") for number in range(2)]
        await asyncio.sleep(3.0)
        begun, sent = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            await sender.send(Message(topic=topic, body=b"%d" % sent))
            sent += 1
            await asyncio.sleep(0.004)
            if len(members) > 0 and time.monotonic() - begun > seconds / (len(members) + 1):
                await members.pop().aclose()
                await join(2 + len(members), mode)
        await asyncio.sleep(5.0)
    twice = sum(count > 1 for count in seen.values())
    return [
        {"what": "deploy: handled twice", "value": round(100 * twice / sent), "unit": "%"},
        {"what": "deploy: not handled", "value": sent - len(seen), "unit": "messages"},
    ]


async def quick(address: str, mode: str, seconds: float) -> Figures:
    """One member with a handler that does nothing."""
    count = int(4_000 * seconds)
    topic = await preload(address, count)
    done, seen = asyncio.Event(), 0

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        nonlocal seen
        seen += len(messages)
        if seen >= count:
            done.set()
        return Consumed()

    async with member(address, 0) as client:
        begun, used = time.perf_counter(), time.process_time()
        await client.consume(wanted(mode, topic, 20), handle)
        async with asyncio.timeout(20 * seconds):
            await done.wait()
        took, used = time.perf_counter() - begun, time.process_time() - used
    return [
        {"what": "quick: handled", "value": round(count / took), "unit": "messages/s"},
        {"what": "quick: our processor", "value": round(used / count * 1e6, 1), "unit": "us"},
    ]


async def idle(address: str, mode: str, seconds: float) -> Figures:
    """One message after another, each sent when the one before was handled."""
    topic = await preload(address, 0)
    waits: list[float] = []
    handled = asyncio.Event()

    async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
        waits.append(time.perf_counter() - float(messages[0].body))
        handled.set()
        return Consumed()

    async with member(address, 0) as client:
        await client.consume(wanted(mode, topic, 4), handle)
        await asyncio.sleep(3.0)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            handled.clear()
            await client.send(Message(topic=topic, body=repr(time.perf_counter()).encode()))
            await handled.wait()
            await asyncio.sleep(0.01)
    return [
        {"what": "idle: half wait", "value": round(median(waits) * 1000, 2), "unit": "ms at most"}
    ]


SCENES = {
    "share": share,
    "moves": moves,
    "quick": quick,
    "idle": idle,
    "deploy": deploy,
    "applied": applied,
    "killed": killed,
}


async def run(address: str, names: Sequence[str], seconds: float, broker: str) -> Figures:
    """Measure both modes of each scene, one after the other."""
    figures: Figures = []
    for name in names:
        for mode in MODES:
            found = await SCENES[name](address, mode, seconds)
            figures += [{**each, "what": f"by the {mode}, {each['what']}"} for each in found]
            print(
                "\n".join(
                    f"{each['what']}: {each['value']} {each['unit']}"
                    for each in figures[-len(found) :]
                ),
                flush=True,
            )
    return [{**each, "broker": broker, "bar": ""} for each in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description="Consumers by the queue and by the message.")
    parser.add_argument("--broker", choices=("ours", "apache"), default="ours")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each scene and mode")
    parser.add_argument("--only", nargs="*", choices=tuple(SCENES), default=tuple(SCENES))
    parser.add_argument("--keep", action="store_true", help="keep the result in bench/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-by-message-") as name:
        kind = ReliableMQBroker if options.broker == "ours" else ApacheRocketMQ
        with kind(Path(name), "ASYNC_FLUSH") as broker:
            scenes = run(broker.name_server_address, options.only, options.seconds, kind.label)
            figures = uvloop.run(scenes)
    results = raw_results.of_now("by-message", {"seconds": options.seconds}, figures)
    print(scale_table(results))
    if options.keep:
        print(raw_results.write(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
