"""How fast an empty slave copies the whole log of a master that goes on serving.

The log is made first. Then an honest client sends one message after another, and meanwhile, one
after the other: nothing else happens; `cp` copies the files of the log; a slave with an empty store
copies the log over the network, checks each record and syncs it. Everything is on the same disk.

    python -m bench.pair_copy               5 GiB, raw results written; needs 11 GiB of disk
    python -m bench.pair_copy --quick       1 GiB, nothing written
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench import raw_results
from bench.pair_lag import positions
from bench.pair_throughput import ours
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import figures_table
from bench.send_cost import BODY, QUEUES, TOPIC, processor_seconds
from bench.send_throughput import pin_to_two_cores
from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message
from reliable_mq.runtime.asyncio_threads import in_thread
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.wire.record import pack_host

GIB = 2**30
IN_BATCH = 256
CALM_SECONDS = 5.0
LOOK_SECONDS = 0.25
DISK_PERCENT_MAX = 90
RATE_BAR, P99_BAR = 0.5, 1.5
PAIR = {"brokerName": "pair", "brokerIP2": "127.0.0.1"}


def fill(store: Path, size: int) -> int:
    """Make a store with a log of so many bytes; return the number of its messages."""
    disk = FileDisk(store)
    core = BrokerCore(broker_config({"flushDiskType": "ASYNC_FLUSH"})[0], disk)
    core.open(now_ms())
    host = pack_host("127.0.0.1", 1)
    count, nothing = 0, [b""] * IN_BATCH
    log = core.state.store.log
    while log.end < size:
        like = StoredMessage(
            topic=TOPIC,
            queue_id=count // IN_BATCH % QUEUES,
            body=b"",
            properties=b"",
            flag=0,
            sys_flag=0,
            born_time_ms=now_ms(),
            born_host=host,
        )
        bodies = [BODY] * IN_BATCH
        core.state.store.appender.append_batch(like, [0] * IN_BATCH, bodies, nothing, now_ms())
        count += IN_BATCH
        batch = core.take_turn().batch
        if batch is not None:
            CommitLog.write_batch(batch)
            core.stored(batch.end, durable=True)
    core.close(now_ms())
    disk.close()
    os.sync()
    return count


class Honest:
    """Sends one message after another, and notes how long each took."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def during(self, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Send while something is done; return its seconds, and the p99 of the sends in ms."""
        took: list[float] = []
        began = time.perf_counter()
        working = asyncio.ensure_future(work())
        while not working.done():
            sent = time.perf_counter()
            await self._client.send(Message(topic=TOPIC, body=BODY))
            took.append((time.perf_counter() - sent) * 1000)
            await asyncio.sleep(0.002)
        await working
        seconds = time.perf_counter() - began
        took.sort()
        return seconds, took[len(took) * 99 // 100]


def cp(source: Path, target: Path) -> None:
    """Copy the files of a folder with `cp`."""
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)


async def has_reported(address: str, end: int) -> None:
    """Return when a slave has reported the log up to an offset."""
    with BlockingLink(address, 60) as link:
        while (await in_thread(partial(positions, link)))[1] < end:
            await asyncio.sleep(LOOK_SECONDS)


async def measure(home: Path, master: ReliableMQBroker, size: int) -> dict[str, float]:
    """Return what was seen: MiB a second, and ms."""
    copy = home / "cp"
    slave = ours(
        home / "slave",
        "SYNC_FLUSH",
        {**PAIR, "brokerRole": "SLAVE", "brokerId": "1"},
        master.name_server_address,
    )
    async with AsyncClient(master.name_server_address) as client:
        await client.create_topic(TOPIC, QUEUES)
        honest = Honest(client)
        await honest.during(lambda: asyncio.sleep(2))
        _seconds, before = await honest.during(lambda: asyncio.sleep(CALM_SECONDS))
        log = master.store / "commitlog"
        cp_seconds, of_cp = await honest.during(lambda: in_thread(partial(cp, log, copy)))
        sync_began = time.perf_counter()
        await in_thread(os.sync)
        sync_seconds = time.perf_counter() - sync_began
        shutil.rmtree(copy)
        await in_thread(os.sync)
        await in_thread(slave.start)
        try:
            used = list(map(processor_seconds, (*master.pids, *slave.pids)))
            seconds, during = await honest.during(lambda: has_reported(master.address, size))
            of_master, of_slave = (
                after - earlier
                for after, earlier in zip(
                    map(processor_seconds, (*master.pids, *slave.pids)), used, strict=True
                )
            )
        finally:
            slave.stop()
    return {
        "cp": size / cp_seconds / 2**20,
        "cp and sync": size / (cp_seconds + sync_seconds) / 2**20,
        "copy": size / seconds / 2**20,
        "before": before,
        "p99 cp": of_cp,
        "during": during,
        "master": of_master / (size / 2**20) * 1e3,
        "slave": of_slave / (size / 2**20) * 1e3,
    }


def lack_of_room(place: Path, size: int) -> str:
    """Return why so many bytes more are too much for a disk; "": they are not."""
    disk = shutil.disk_usage(place)
    if (disk.used + size) * 100 < (disk.used + disk.free) * DISK_PERCENT_MAX:
        return ""
    return (
        f"{place}: with {size / GIB:.0f} GiB more, its disk is fuller than {DISK_PERCENT_MAX}%, "
        "and a broker refuses sends; make room, or name another place with --directory"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="The copy of a whole log.")
    parser.add_argument("--quick", action="store_true", help="a small log, nothing written")
    parser.add_argument("--gib", type=float, help="size of the log (5; quick: 1)")
    parser.add_argument("--directory", type=Path, help="where the stores are made")
    options = parser.parse_args()
    pin_to_two_cores()
    gib = options.gib or (1.0 if options.quick else 5.0)
    size = int(gib * GIB)
    place = options.directory or Path(tempfile.gettempdir())
    if reason := lack_of_room(place, 2 * size):
        print(reason, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="reliable-mq-copy-", dir=place) as folder:
        home = Path(folder)
        count = fill(home / "master" / "store", size)
        print(f"{count:,} messages are in the log", flush=True)
        master = ours(home / "master", "SYNC_FLUSH", {**PAIR, "brokerRole": "ASYNC_MASTER"}, "")
        with master:
            seen = uvloop.run(measure(home, master, size))
    ratio, slower = seen["copy"] / seen["cp"], seen["during"] / seen["before"]
    figures: list[dict[str, Any]] = [
        {"what": what, "value": value, "unit": unit, "bar": bar}
        for what, value, unit, bar in (
            ("cp", seen["cp"], "MiB/s", ""),
            ("cp, and sync", seen["cp and sync"], "MiB/s", ""),
            ("a slave's copy, checked and synced", seen["copy"], "MiB/s", ""),
            ("the copy's rate over that of cp", ratio, "", f">= {RATE_BAR}"),
            ("processor time of the master, of a MiB", seen["master"], "ms", ""),
            ("processor time of the slave, of a MiB", seen["slave"], "ms", ""),
            ("p99 of a client's sends, before", seen["before"], "ms", ""),
            ("p99 while cp copies", seen["p99 cp"], "ms", ""),
            ("p99 while the slave copies", seen["during"], "ms", ""),
            ("that over before", slower, "", f"<= {P99_BAR}"),
        )
    ]
    settings = {"gib": gib, "messages": count, "body": len(BODY)}
    results = raw_results.of_now("pair-copy", settings, figures)
    if not options.quick:
        print(f"raw results: {raw_results.write(results)}")
    print(figures_table(results))
    return 0 if ratio >= RATE_BAR and slower <= P99_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
