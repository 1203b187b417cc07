"""How far a slave is behind its master while 5,000 messages a second arrive.

The master is asked about a thousand times a second where its log ends, and how far the slave has
reported the log. The lag of such a moment is the time until the slave has reported the end that
the log had then. So it begins when a message is in the master's log, and ends when the master
knows that the slave has it, on the disk. What the questions take is in it.

    python -m bench.pair_lag                each role 30 seconds, raw results written
    python -m bench.pair_lag --quick        5 seconds each, nothing written
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench import raw_results
from bench.pair_throughput import ReplicatedPair, ours
from bench.render import figures_table
from bench.send_cost import BODY, QUEUES, TOPIC
from bench.send_throughput import pin_to_two_cores
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

ROLES = ("ASYNC_MASTER", "SYNC_MASTER")
STEP_SECONDS = 0.002  # between two groups of sends
WARMUP_SECONDS = 2.0
LOOK_SECONDS = 0.001
BAR_MS = 50


def positions(link: BlockingLink) -> tuple[int, int]:
    """Return where the master's log ends, and how far its slave has reported it."""
    told = msgspec.json.decode(link.call(request(RequestCode.GET_BROKER_HA_STATUS)).body)
    rows = told["haConnectionInfo"]
    return told["masterCommitLogMaxOffset"], rows[0]["slaveAckOffset"] if rows else 0


def lags(address: str, seconds: float) -> list[float]:
    """Ask again and again; return the lag of each moment, in ms."""
    waiting: deque[tuple[float, int]] = deque()
    found: list[float] = []
    with BlockingLink(address, 10) as link:
        until = time.perf_counter() + seconds
        while (asked := time.perf_counter()) < until:
            end, reported = positions(link)
            now = time.perf_counter()
            if not waiting or end > waiting[-1][1]:
                waiting.append((asked, end))
            while waiting and waiting[0][1] <= reported:
                found.append((now - waiting.popleft()[0]) * 1000)
            time.sleep(LOOK_SECONDS)
    return found


class Paced:
    """Sends so many messages a second, whatever becomes of the earlier ones.

    Those of one second may be on their way; a machine that is slower gets fewer.
    """

    def __init__(self, client: AsyncClient, rate: int) -> None:
        self._client = client
        self._rate = rate
        self.sent = self.failed = self.on_their_way = 0

    async def _send(self) -> None:
        self.on_their_way += 1
        try:
            await self._client.send(Message(topic=TOPIC, body=BODY))
            self.sent += 1
        except ReliableMQError:
            self.failed += 1
        finally:
            self.on_their_way -= 1

    async def run_forever(self) -> None:
        """Send until it is cancelled."""
        begun, count = time.perf_counter(), 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                due = int((time.perf_counter() - begun) * self._rate)
                for _ in range(min(due - count, self._rate - self.on_their_way)):
                    tasks.create_task(self._send())
                count = due
                await asyncio.sleep(STEP_SECONDS)


async def measure(pair: ReplicatedPair, rate: int, seconds: float) -> dict[str, Any]:
    """Return what was seen of a running pair."""
    async with AsyncClient(pair.name_server_address) as client:
        await client.create_topic(TOPIC, QUEUES)
        paced = Paced(client, rate)
        sending = asyncio.ensure_future(paced.run_forever())
        await asyncio.sleep(WARMUP_SECONDS)
        before, began = paced.sent, time.perf_counter()
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a thread waits for the sender
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(pool, lags, pair.master.address, seconds)
        rate_seen = (paced.sent - before) / (time.perf_counter() - began)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    found.sort()
    return {
        "per_second": rate_seen,
        "failed": paced.failed,
        "looks": len(found),
        "p50_ms": statistics.median(found),
        "p99_ms": found[len(found) * 99 // 100],
        "max_ms": found[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The lag of a slave.")
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    parser.add_argument("--rate", type=int, default=5_000, help="messages a second")
    parser.add_argument("--quick", action="store_true", help="short, nothing written")
    parser.add_argument("--seconds", type=float, help="for each role (30; quick: 5)")
    options = parser.parse_args()
    pin_to_two_cores()
    seconds = options.seconds or (5.0 if options.quick else 30.0)
    figures: list[dict[str, Any]] = []
    is_good = True
    for role in options.roles:
        with (
            tempfile.TemporaryDirectory(prefix="reliable-mq-lag-") as directory,
            ReplicatedPair(ours, role, Path(directory) / "master", "SYNC_FLUSH") as pair,
        ):
            seen = uvloop.run(measure(pair, options.rate, seconds))
        is_good = is_good and seen["p99_ms"] < BAR_MS and not seen["failed"]
        for name, unit, bar in (
            ("per_second", "msg/s", ""),
            ("p50_ms", "ms", ""),
            ("p99_ms", "ms", f"< {BAR_MS}"),
            ("max_ms", "ms", ""),
        ):
            what = {"per_second": "messages sent", "max_ms": "longest lag"}.get(
                name, f"lag, {name[:3]}"
            )
            figures.append(
                {"what": f"{role}: {what}", "value": seen[name], "unit": unit, "bar": bar}
            )
    settings = {"rate": options.rate, "seconds": seconds, "body": len(BODY)}
    results = raw_results.of_now("pair-lag", settings, figures)
    if not options.quick:
        print(f"raw results: {raw_results.write(results)}")
    print(figures_table(results))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
