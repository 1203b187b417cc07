"""A process that idles, and says what that took. It imports nothing that a bare one would not.

python -m bench.idle_process KIND NAMESRV QUEUES SECONDS
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence

import uvloop

MESSAGES = 100
SETTLE_SECONDS = 5.0
BARE, ASYNC, THREAD = "bare", "AsyncClient", "Client"


def field_of(path: str, name: str) -> int:
    """Return a number of a file of /proc."""
    with open(path) as lines:  # noqa: PTH123 - pathlib is no part of a bare interpreter
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


def wake_ups() -> int:
    """Return how often the threads of this process have waited for something."""
    name = "voluntary_ctxt_switches:"
    tasks = os.listdir("/proc/self/task")  # noqa: PTH208
    return sum(field_of(f"/proc/self/task/{task}/status", name) for task in tasks)


async def watch(seconds: float) -> None:
    """Idle, and print processor seconds, wake-ups and resident KiB."""
    await asyncio.sleep(SETTLE_SECONDS)
    before, switches = time.process_time(), wake_ups()
    await asyncio.sleep(seconds)
    resident = field_of("/proc/self/status", "VmRSS:")
    print(time.process_time() - before, wake_ups() - switches, resident, flush=True)


async def idle_async(name_servers: str, queues: int, seconds: float) -> None:
    """Idle with the asynchronous face."""
    from reliable_mq import AsyncClient, Consumed, Message, Subscription  # noqa: PLC0415

    seen = 0

    async def handle(messages: Sequence[object]) -> list[Consumed]:
        nonlocal seen
        seen += len(messages)
        return [Consumed()] * len(messages)

    async with AsyncClient(name_servers) as client:
        topic = f"idle-async-{queues}"
        await client.create_topic(topic, queues)
        await client.consume(Subscription(group=topic, topics={topic: "*"}), handle)
        await client.send_many([Message(topic=topic, body=b"x" * 1024)] * MESSAGES)
        while seen < MESSAGES:
            await asyncio.sleep(0.1)
        await watch(seconds)


def idle_thread(name_servers: str, queues: int, seconds: float) -> None:
    """Idle with the synchronous face and a handler that runs in threads."""
    from reliable_mq import Client, Consumed, Message, Subscription  # noqa: PLC0415

    seen = 0

    def handle(messages: Sequence[object]) -> list[Consumed]:
        nonlocal seen
        seen += len(messages)
        return [Consumed()] * len(messages)

    with Client(name_servers) as client:
        topic = f"idle-thread-{queues}"
        client.create_topic(topic, queues)
        client.consume(Subscription(group=topic, topics={topic: "*"}), handle)
        client.send_many([Message(topic=topic, body=b"x" * 1024)] * MESSAGES)
        while seen < MESSAGES:
            time.sleep(0.1)
        uvloop.run(watch(seconds))


def main(kind: str, name_servers: str, queues: str, seconds: str) -> None:
    if kind == BARE:
        uvloop.run(watch(float(seconds)))
    elif kind == ASYNC:
        uvloop.run(idle_async(name_servers, int(queues), float(seconds)))
    else:
        idle_thread(name_servers, int(queues), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
