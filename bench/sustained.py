"""A broker under a steady load: processor time for a message, lag of the index, resident memory.

The generator of `send_floor` sends so many messages a second. Index and retention are on: above a
used share of the disk, the broker removes the oldest files of its log. Each second, the lag of the
index is read from its newest file: how long ago the last message was stored that is listed.

    python -m bench.sustained [--minutes 60] [--rate 15000] [--connections 1] [--flush ASYNC_FLUSH]

Measured are whole minutes after the first one. Results are kept raw, with a row for each minute.
"""

import argparse
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.quiet import resident_mib
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import processor_seconds
from bench.send_floor import BODY_SIZE, QUEUES, TOPIC, Generator
from reliable_mq.client.thread_client import Client

COST_BAR_US, LAG_BAR_SECONDS, MEMORY_BAR_MIB = 12, 5, 150
FILE_MIB = 256  # of the log
_INDEX_HEAD = struct.Struct(">qq")  # times of the first and the last message, in ms
_IN_FLIGHT = 64


class Watch:
    """Watches a broker while it is sent messages.

    Args:
        broker: the broker.
        told: where the generator tells how many messages are answered.
    """

    def __init__(self, broker: ReliableMQBroker, told: Path) -> None:
        (self._pid,) = broker.pids
        self._store, self._told = broker.store, told
        self._began = time.time()

    def _answered(self) -> int:
        lines = self._told.read_text().rpartition("\n")[0].splitlines()
        return int(lines[-1].split()[0]) if lines else 0

    def _index_lag(self) -> float:
        """Return how many seconds ago the last message was stored that the index lists."""
        path = max((self._store / "index").glob("*"), default=None)
        if path is None:  # it lists nothing yet
            return time.time() - self._began
        with path.open("rb") as file:
            end_ms: int = _INDEX_HEAD.unpack(file.read(_INDEX_HEAD.size))[1]
        return max(0.0, time.time() - end_ms / 1000)

    def watch(self, seconds: float) -> dict[str, float]:
        """Sample each second; return what the broker has done in this time."""
        began, used, answered = time.time(), processor_seconds(self._pid), self._answered()
        lags, sizes = [], []
        while time.time() < began + seconds:
            time.sleep(1)
            lags.append(self._index_lag())
            sizes.append(resident_mib(self._pid))
        return {
            "seconds": time.time() - began,
            "messages": self._answered() - answered,
            "processor_seconds": processor_seconds(self._pid) - used,
            "index_lag_seconds_max": max(lags),
            "resident_mib_max": max(sizes),
            "log_files": len(list((self._store / "commitlog").iterdir())),
            "index_files": len(list((self._store / "index").glob("*"))),
        }


def figures_of(minutes: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return what the bars ask for, over all minutes."""

    def total(name: str) -> float:
        return sum(each[name] for each in minutes)

    cost = total("processor_seconds") / total("messages") * 1e6
    lag = max(each["index_lag_seconds_max"] for each in minutes)
    size = max(each["resident_mib_max"] for each in minutes)
    files = max(each["log_files"] for each in minutes)
    rows = (
        ("messages", total("messages") / 1e6, "million", ""),
        ("messages a second", total("messages") / total("seconds") / 1e3, "thousand", ""),
        ("processor time of the broker for a message", cost, "us", f"<= {COST_BAR_US}"),
        ("longest lag of the index", lag, "s", f"< {LAG_BAR_SECONDS}"),
        ("resident memory, at most", size, "MiB", f"< {MEMORY_BAR_MIB}"),
        (f"files of the log ({FILE_MIB} MiB), at most", files, "", ""),
    )
    return [{"what": what, "value": v, "unit": u, "bar": bar} for what, v, u, bar in rows]


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the broker: the oldest files go above a used share of the disk."""
    disk = shutil.disk_usage(options.directory)
    share = 100 * (disk.used + options.log_gib * 2**30) / (disk.used + disk.free)
    return {
        "mappedFileSizeCommitLog": str(FILE_MIB * 1024 * 1024),
        "cleanFileForciblyEnable": "true",
        "diskSpaceCleanForciblyRatio": str(max(30, round(share))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="A broker under a steady load.")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=15_000, help="messages a second")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="messages of a send")
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="ASYNC_FLUSH")
    parser.add_argument("--log-gib", type=int, default=8, help="how far the disk is filled")
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where the store is")
    parser.add_argument("--keep", action="store_true", help="keep the results in bench/results")
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        print("there is no gcc for the generator", file=sys.stderr)
        return 2
    minutes: list[dict[str, float]] = []
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="sustained-", dir=options.directory)
        directory = Path(stack.enter_context(made))
        generator = Generator(directory, 0, "json")
        settings = settings_of(options)
        broker = ReliableMQBroker(directory / "broker", options.flush, settings=settings)
        stack.enter_context(broker)
        with Client(broker.name_server_address) as client:
            client.create_topic(TOPIC, QUEUES)
        count = options.rate * 60 * (options.minutes + 2)
        numbers = (options.connections, _IN_FLIGHT, count, BODY_SIZE, options.batch)
        words = [broker.address.rpartition(":")[2], TOPIC, str(QUEUES), *map(str, numbers)]
        told = directory / "told"
        with told.open("w") as out:
            child = subprocess.Popen(
                [generator.program, *words, "json", str(options.rate)], stdout=out
            )
        stack.callback(child.wait)
        stack.callback(child.kill)
        watch = Watch(broker, told)
        watch.watch(10)  # warm
        for number in range(options.minutes):
            minute = watch.watch(60)
            if child.poll() is not None or not minute["messages"]:
                print("the generator has ended", file=sys.stderr)
                return 1
            minutes.append(minute)
            cost = minute["processor_seconds"] / minute["messages"] * 1e6
            print(
                f"minute {number + 1:3}: {minute['messages'] / minute['seconds']:9,.0f} msg/s"
                f" {cost:6.2f} us, index {minute['index_lag_seconds_max']:5.2f} s behind,"
                f" {minute['resident_mib_max']:6.1f} MiB, {minute['log_files']} files of the log",
                flush=True,
            )
    names = ("minutes", "rate", "connections", "batch", "flush")
    chosen = {name: getattr(options, name) for name in names}
    figures = figures_of(minutes)
    for each in figures:
        print(f"{each['what']:44} {each['value']:10,.2f} {each['unit']:8} {each['bar']}")
    if options.keep:
        raw_results.write({**raw_results.of_now("sustained", chosen, figures), "samples": minutes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
