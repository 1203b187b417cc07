"""Orders a second from a row and its message to the effect, beside the same rows without messages.

Three flows take turns. `plain`: one process writes orders, another one writes effects, a
transaction each, and nobody tells anybody. `one`: the order's transaction holds a stub, the
consumer's holds consume log and confirmation, one transaction for each message. `batch`: the same,
up to 64 messages in the consumer's transaction. The clock runs from the first order until orders
and effects of the last one are committed. PostgreSQL syncs every commit, the broker every message;
producer, worker, resend scheduler and broker are processes of their own.

Then the latency of an idle system: one order at a time, from its commit to that of its effect, as
PostgreSQL itself noted them (`pg_xact_commit_timestamp`).

    python -m bench.order_flow --orders 3000 --rounds 3
"""

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg

from bench import raw_results
from bench.child_process import ChildError, LoggedProcess
from bench.orders_end_to_end import processor_seconds
from bench.quiet import used_seconds
from bench.reliable_mq_broker import COMMAND, ReliableMQBroker
from bench.render import flow_table
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

FLOWS = ("plain", "one", "batch")
WARMUP = 200
PROGRESS_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
IDLE_SECONDS = 0.02
APPLICATION = "bench.order_flow_app"
LATENCIES = """
    SELECT extract(epoch FROM pg_xact_commit_timestamp(e.xmin) - pg_xact_commit_timestamp(o.xmin))
    FROM flow_order o JOIN flow_effect e ON e.order_id = o.id WHERE o.id > %s
"""


class Shop:
    """What runs during the measurement, and what is asked of the database.

    Args:
        database: its URL.
        threads: how many place orders.
        used: tells the processor seconds that each process has used so far.
    """

    def __init__(self, database: str, threads: int, used: Callable[[], dict[str, float]]) -> None:
        self._used = used
        self._connection = psycopg.connect(database.replace("+psycopg", ""), autocommit=True)
        self._numbers = itertools.count(1)
        self._threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        self.pool.shutdown()
        self._connection.close()

    def analyze(self) -> None:
        """Let PostgreSQL learn the tables' sizes, as autovacuum does within the first minute."""
        self._connection.execute("ANALYZE")

    def effects(self) -> int:
        """Return how many effects are committed."""
        row = self._connection.execute("SELECT count(*) FROM flow_effect").fetchone()
        assert row is not None
        return int(row[0])

    def wait_for_effects(self, wanted: int) -> None:
        """Return when there are so many; raises ChildError after a minute without progress."""
        last, deadline = -1, time.monotonic() + PROGRESS_SECONDS_MAX
        while (found := self.effects()) < wanted:
            if found > last:
                last, deadline = found, time.monotonic() + PROGRESS_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise ChildError(f"stuck at {found} of {wanted} effects")
            time.sleep(POLL_SECONDS)

    def place(self, flow: str, count: int) -> None:
        """Place orders by all threads."""
        from bench.order_flow_app import place  # noqa: PLC0415 - after the environment is set

        list(self.pool.map(lambda number: place(flow, number), self._next(count)))

    def _next(self, count: int) -> list[int]:
        return list(itertools.islice(self._numbers, count))

    def round(self, flow: str, count: int) -> dict[str, Any]:
        """Run one flow once."""
        before = self.effects()
        with self._effects_without_messages(flow, count) as seconds_elsewhere:
            used, begin = self._used() | {"effects": seconds_elsewhere()}, time.perf_counter()
            self.place(flow, count)
            placed = time.perf_counter()
            self.wait_for_effects(before + count)
            end = time.perf_counter()
            now = self._used() | {"effects": seconds_elsewhere()}
        shares = {name: seconds - used[name] for name, seconds in now.items()}
        doubled = self.effects() - before - count
        return {
            "flow": flow,
            "orders_per_second": round(count / (end - begin), 1),
            "placed_per_second": round(count / (placed - begin), 1),
            "processor_ms": {k: round(v / count * 1000, 3) for k, v in shares.items()},
            "doubled": doubled,
        }

    @contextlib.contextmanager
    def _effects_without_messages(self, flow: str, count: int) -> Iterator[Callable[[], float]]:
        """Write effects in a process of their own; give what tells the time it has used."""
        if flow != "plain":
            yield lambda: 0.0
            return
        command = [sys.executable, "-m", APPLICATION, str(count), str(self._threads)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.readline()
            child.stdin.write("go\n")
            child.stdin.flush()
            yield lambda: used_seconds([child.pid])
            child.stdin.close()

    def latencies_ms(self, flow: str, count: int) -> list[float]:
        """Place one order after another into an idle system; return commit to effect, sorted."""
        first = next(self._numbers)
        for _ in range(count):
            effects = self.effects()
            self.place(flow, 1)
            self.wait_for_effects(effects + 1)
            time.sleep(IDLE_SECONDS)
        rows = self._connection.execute(LATENCIES, (first,)).fetchall()
        return sorted(float(row[0]) * 1000 for row in rows)


@contextlib.contextmanager
def flow_servers(
    directory: Path,
) -> Iterator[tuple[LocalPostgres, LocalValkey, ReliableMQBroker]]:
    """Start what the application needs, tell it where that is, and make its tables."""
    with contextlib.ExitStack() as stack:
        postgres, valkey = LocalPostgres(directory / "postgres"), LocalValkey(directory / "valkey")
        for server in (postgres, valkey):
            server.start()
            stack.callback(server.stop)
        with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET track_commit_timestamp = on")
        postgres.restart()
        broker = stack.enter_context(ReliableMQBroker(directory / "broker"))
        os.environ["RELIABLE_MQ_BROKER"] = broker.name_server_address
        os.environ["RELIABLE_MQ_DATABASE"] = postgres.url
        os.environ["RELIABLE_MQ_REDIS"] = valkey.url
        from bench.order_flow_app import metadata, mq  # noqa: PLC0415 - after the environment is set

        mq.create_tables()
        metadata.create_all(mq.database.engine)
        stack.callback(mq.close)
        yield postgres, valkey, broker


@contextlib.contextmanager
def running(directory: Path, threads: int) -> Iterator[Shop]:
    """Start the servers, the broker, one worker for each flow and the resend scheduler."""
    with contextlib.ExitStack() as stack:
        postgres, valkey, broker = stack.enter_context(flow_servers(directory))
        pids = {"producer": os.getpid(), "broker": broker.pids[0]}
        for flow, verb in (("one", "run"), ("batch", "run"), ("", "resend")):
            os.environ["FLOW"] = flow
            name = f"{verb} {flow}".strip()
            command = (*COMMAND, verb, f"{APPLICATION}:mq")
            log, named = directory / f"{verb}-{flow}.log", {"PGAPPNAME": name}
            process = LoggedProcess(command, log, environment=named)
            stack.callback(process.stop)
            pids[name] = process.child.pid

        def used() -> dict[str, float]:
            own = {name: used_seconds([pid]) for name, pid in pids.items()}
            return own | {each.name: processor_seconds(each) for each in (postgres, valkey)}

        shop = Shop(postgres.url, threads, used)
        stack.callback(shop.close)
        yield shop


def measure(
    directory: Path, *, orders: int, rounds: int, threads: int, latency: int
) -> list[dict[str, Any]]:
    """Let the flows take turns; return what every round came to, and the latencies."""
    found: list[dict[str, Any]] = []
    with running(directory, threads) as shop:
        for flow in FLOWS:
            shop.round(flow, WARMUP)
        shop.analyze()
        for _ in range(rounds):
            found += [shop.round(flow, orders) for flow in FLOWS]
        for flow in FLOWS[1:]:
            cuts = quantiles(shop.latencies_ms(flow, latency), n=100)
            percentiles = {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}
            found.append({"flow": flow, "messages": latency, **percentiles})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="From an order and its message to the effect.")
    parser.add_argument("--orders", type=int, default=3_000, help="orders of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4, help="threads that place orders")
    parser.add_argument("--latency", type=int, default=300, help="orders placed one by one")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-flow-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    print(f"logs are in {directory} until it has gone well")
    found = measure(directory, **vars(options))
    shutil.rmtree(directory)
    results = raw_results.of_now("flow", vars(options), found)
    print(f"raw results: {raw_results.write(results)}\n{flow_table(results)}")
    return 1 if any(each.get("doubled") for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
