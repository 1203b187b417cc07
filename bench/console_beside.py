"""What an open console costs the order flow: its speed with and without, in turns.

The flow is the one of `order_flow`, a transaction for up to 64 messages. In every other round, the
console is stopped (SIGSTOP). In the rounds with it, its overview is asked for every five seconds,
as the page does. Beside the speed, the processor time of the console and of its connections at
PostgreSQL is measured: it does not depend on what else the machine does.

    python -m bench.console_beside --orders 20000 --rounds 5
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psycopg

from bench import raw_results
from bench.child_process import LoggedProcess
from bench.console_backends import Backends
from bench.console_data import address_of
from bench.order_flow import APPLICATION, WARMUP, running
from bench.quiet import used_seconds
from bench.reliable_mq_broker import COMMAND
from bench.render import figures_table

FLOW = "batch"
LIVE_SECONDS = 5.0
READY_SECONDS = 60.0
CORES = os.cpu_count() or 1


class OpenPage:
    """An overview in a browser: it is refreshed every five seconds while it is open."""

    def __init__(self, url: str) -> None:
        self.refreshed = 0
        self._url = url
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "OpenPage":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30.0) as client:
            client.get("/").raise_for_status()
            while not self._closed.wait(LIVE_SECONDS):
                client.get("/overview/live").raise_for_status()
                self.refreshed += 1


@contextlib.contextmanager
def console(directory: Path) -> Iterator[tuple[LoggedProcess, str]]:
    """Start a console of the flow's application; it is stopped with the context."""
    command = (*COMMAND, "console", "--app", f"{APPLICATION}:mq", "--port", "0")
    started = LoggedProcess(command, directory / "console.log", environment={"FLOW": ""})
    try:
        yield started, started.wait_for(r"^ready console=(\S+)$", READY_SECONDS)[1]
    finally:
        started.resume()
        started.stop()


def measure(directory: Path, *, orders: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Let rounds with and without the console take turns; return the figures."""
    pairs: list[dict[bool, float]] = []
    seconds = console_seconds = server_seconds = 0.0
    with (
        running(directory, threads) as shop,
        console(directory) as (opened, url),
        psycopg.connect(address_of(os.environ["RELIABLE_MQ_DATABASE"]), autocommit=True) as asking,
    ):
        backends = Backends(opened.child.pid, asking)
        shop.round(FLOW, WARMUP)
        shop.analyze()
        with OpenPage(url):  # its first count of an hour
            time.sleep(LIVE_SECONDS)
        for number in range(rounds):
            pair: dict[bool, float] = {}
            for is_open in (True, False) if number % 2 else (False, True):
                if not is_open:
                    opened.pause()
                    pair[is_open] = shop.round(FLOW, orders)["orders_per_second"]
                    opened.resume()
                    continue
                used, served = used_seconds([opened.child.pid]), backends.seconds()
                begin = time.monotonic()
                with OpenPage(url):
                    pair[is_open] = shop.round(FLOW, orders)["orders_per_second"]
                seconds += time.monotonic() - begin
                console_seconds += used_seconds([opened.child.pid]) - used
                server_seconds += backends.seconds() - served
            pairs.append(pair)
            print(f"round {number + 1}: {pair[True]:.1f} with, {pair[False]:.1f} without")
    ratio = median(pair[True] / pair[False] for pair in pairs)
    both = (console_seconds + server_seconds) / seconds
    return [
        _figure("orders/s without the console", median(p[False] for p in pairs), "orders/s"),
        _figure("orders/s with an open overview", median(p[True] for p in pairs), "orders/s"),
        _figure("ratio, median of the turns", ratio, "", ">= 0.95"),
        _figure("processor, the console", console_seconds / seconds * 100, "% of a core"),
        _figure("processor, its connections", server_seconds / seconds * 100, "% of a core"),
        _figure("both, of the machine's cores", both / CORES * 100, "%", "< 5"),
    ]


def _figure(what: str, value: float, unit: str, bar: str = "") -> dict[str, Any]:
    return {"what": what, "value": round(value, 4), "unit": unit, "bar": bar}


def main() -> int:
    parser = argparse.ArgumentParser(description="The order flow beside an open console.")
    parser.add_argument("--orders", type=int, default=20_000, help="orders of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=4, help="threads that place orders")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-beside-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    print(f"logs are in {directory} until it has gone well")
    found = measure(directory, **vars(options))
    shutil.rmtree(directory)
    results = raw_results.of_now("console-beside", vars(options), found)
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
