"""Processor time of one message that is sent to a pair: the master's and the slave's.

As `send_cost`: our client has 1, 16 or 64 messages on their way. What is measured is processor
time, so it says the same on a machine that has other things to do. The first line of each number
is the same broker alone: what is more is the price of the pair.

    python -m bench.pair_cost [--roles SYNC_MASTER] [--flush ASYNC_FLUSH] [--in-flight 1 16 64]
                              [--seconds 4] [--slave-flush received] [--keep DIR]
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.pair_throughput import ReplicatedPair, ours
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import BODY, QUEUES, TOPIC, processor_seconds
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message

ALONE = "alone"


class Look(NamedTuple):
    """What was used until a moment: seconds, messages, and by process: seconds and waits."""

    wall: float
    sent: int
    used: list[float]
    waits: list[int]


def waits_of(pid: int) -> int:
    """Return how often the threads of a process have waited for something."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            text = (task / "status").read_text()
            count += int(text.split("voluntary_ctxt_switches:")[1].split()[0])
    return count


async def measure(
    name_servers: str, pids: list[int], at_once: int, seconds: float, warmup: float
) -> tuple[Look, Look]:
    """Send for a while, so many at once; return what was seen before and after."""
    count, is_over = 0, False

    async def lane() -> None:
        nonlocal count
        while not is_over:
            await client.send(Message(topic=TOPIC, body=BODY))
            count += 1

    def look() -> Look:
        return Look(
            time.perf_counter(),
            count,
            [processor_seconds(pid) for pid in pids],
            [waits_of(pid) for pid in pids],
        )

    async with AsyncClient(name_servers) as client:
        await client.create_topic(TOPIC, QUEUES)
        lanes = [asyncio.ensure_future(lane()) for _ in range(at_once)]
        await asyncio.sleep(warmup)
        before = look()
        await asyncio.sleep(seconds)
        after = look()
        is_over = True
        await asyncio.gather(*lanes)
    return before, after


def tell(what: str, before: Look, after: Look) -> None:
    """Print what one message has cost."""
    count = max(1, after.sent - before.sent)
    parts = [f"{what:24} {count / (after.wall - before.wall):9,.0f} msg/s"]
    for name, used, waits in zip(
        ("master", "slave"),
        map(lambda new, old: new - old, after.used, before.used),
        map(lambda new, old: new - old, after.waits, before.waits),
        strict=False,
    ):
        parts.append(f"{name} {used / count * 1e6:6.1f} us, {waits / count:5.2f} waits")
    print("   ".join(parts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Processor time of a message at a pair.")
    roles = [ALONE, "SYNC_MASTER", "ASYNC_MASTER"]
    parser.add_argument("--roles", nargs="+", choices=roles, default=roles)
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="SYNC_FLUSH")
    parser.add_argument("--slave-flush", choices=["disk", "received"], default="disk")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warmup", type=float, default=2.0)
    options = parser.parse_args()
    make = partial(ours, slave_flush=options.slave_flush)
    for at_once in options.in_flight:
        for role in options.roles:
            with tempfile.TemporaryDirectory(prefix="reliable-mq-pair-") as directory:
                home = Path(directory) / "master"
                server = (
                    ReliableMQBroker(home, options.flush)
                    if role == ALONE
                    else ReplicatedPair(make, role, home, options.flush)
                )
                with server:
                    seen = uvloop.run(
                        measure(
                            server.name_server_address,
                            server.pids,
                            at_once,
                            options.seconds,
                            options.warmup,
                        )
                    )
                tell(f"{at_once} at once, {role}", *seen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
