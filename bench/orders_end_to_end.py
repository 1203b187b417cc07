"""Orders a second from the business transaction to both committed effects, without faults.

The shop of `examples/shop`: threads place real orders (order, lines, stub: one transaction each),
workers take payments and add points. PostgreSQL syncs every commit, the broker every message. The
clock runs from the first order after the warm-up until both groups' effects of the last order are
committed; then the outcome is checked in plain SQL, as the demo does.

    python -m bench.orders_end_to_end --orders 5000 --workers 1 --threads 4
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import psycopg

from bench import raw_results
from bench.child_process import ChildError, LoggedProcess
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import orders_table
from bench.station_times import StationTimes, seconds_between
from examples.demo.baskets import Basket, first_baskets
from examples.demo.checks import check_outcome
from reliable_mq.testing.local_servers import LocalPostgres, LocalServer, LocalValkey

WARMUP_ORDERS = 300
GROUPS = 2
PROGRESS_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


def watched(times: Path) -> tuple[str, ...]:
    """What stands for `reliable-mq` so that its processor time is noted in `times`."""
    return (sys.executable, "-m", "bench.station_times", str(times), "--")


def processor_seconds(server: LocalServer) -> float:
    """Return what a server and its children have used so far, from Linux's /proc."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            pid = int(stat.parent.name)
            fields = stat.read_text().rpartition(")")[2].split()
            if server.pid in (pid, int(fields[1])):
                ticks += sum(map(int, fields[11:15]))  # user and system, its own and its dead
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[tuple[LocalPostgres, LocalValkey]]:
    """Start PostgreSQL and Valkey."""
    with contextlib.ExitStack() as stack:
        postgres, valkey = LocalPostgres(directory / "postgres"), LocalValkey(directory / "valkey")
        for server in (postgres, valkey):
            server.start()
            stack.callback(server.stop)
        yield postgres, valkey


@contextlib.contextmanager
def shop(
    directory: Path, database: str, redis: str, workers: int
) -> Iterator[dict[str, list[Path]]]:
    """Start broker, workers and resend scheduler; give the files with their processor times."""
    times = {"broker": [directory / "broker.times"]}
    with contextlib.ExitStack() as stack:
        command = watched(times["broker"][0])
        broker = stack.enter_context(ReliableMQBroker(directory / "broker", command=command))
        os.environ["RELIABLE_MQ_BROKER"] = broker.name_server_address
        os.environ["RELIABLE_MQ_DATABASE"] = database
        os.environ["RELIABLE_MQ_REDIS"] = redis
        create_tables()
        for name, verb, count in (("worker", "run", workers), ("scheduler", "resend", 1)):
            times[name] = [directory / f"{name}-{number}.times" for number in range(count)]
            for file in times[name]:
                command = (*watched(file), verb, "examples.shop:mq")
                stack.callback(LoggedProcess(command, file.with_suffix(".log")).stop)
        yield times


def create_tables() -> None:
    """Create the shop's tables and ours."""
    from sqlalchemy import create_engine  # noqa: PLC0415 - after the environment is set

    from examples.shop import ShopTable, mq  # noqa: PLC0415

    mq.create_tables()
    ShopTable.metadata.create_all(create_engine(os.environ["RELIABLE_MQ_DATABASE"]))


def place(basket: Basket) -> None:
    """Place one basket as an order of the shop."""
    from examples.demo.producer import order_of  # noqa: PLC0415
    from examples.shop import place_order  # noqa: PLC0415 - after the environment is set

    place_order(*order_of(basket))


def analyze(database: str) -> None:
    """Let PostgreSQL learn the tables' sizes, as autovacuum does within the first minute."""
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("ANALYZE")


def wait_for_effects(database: str, orders: int) -> None:
    """Return when both groups have consumed that many orders.

    Raises ChildError after a minute without progress.
    """
    deadline = time.monotonic() + PROGRESS_SECONDS_MAX
    last = 0
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        while last < orders * GROUPS:
            row = connection.execute(
                "SELECT count(*) FROM rmq_consume_log WHERE state = 1"
            ).fetchone()
            assert row is not None
            if row[0] > last:
                deadline = time.monotonic() + PROGRESS_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise ChildError(f"stuck at {last} of {orders * GROUPS} effects")
            last = row[0]
            time.sleep(POLL_SECONDS)


def count_resends(database: str) -> int:
    """Return how many sends there were beyond one for each stub."""
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT sum(count - 1) FROM rmq_message_stub WHERE count > 1"
        ).fetchone()
    assert row is not None
    return int(row[0] or 0)  # a send whose count is not written yet is no second one


def processor_time(
    files: Mapping[str, Sequence[Path]], begin: float, end: float
) -> dict[str, float]:
    """Return the processor seconds of each `process: station` between two times."""
    used: defaultdict[str, float] = defaultdict(float)
    for process, outputs in files.items():
        for output in outputs:
            for station, seconds in seconds_between(output, begin, end).items():
                used[f"{process}: {station}"] += round(seconds, 3)
    return used


def measure(directory: Path, *, orders: int, workers: int, threads: int) -> dict[str, Any]:
    """Run once; return orders per second and processor seconds by station."""
    baskets = first_baskets(WARMUP_ORDERS + orders)
    warm, timed = list(islice(baskets, WARMUP_ORDERS)), list(baskets)
    own_times = directory / "producer.times"
    with (
        servers(directory) as both,
        shop(directory, both[0].url, both[1].url, workers) as times,
        ThreadPoolExecutor(threads) as pool,
    ):
        database = both[0].url
        StationTimes(own_times).start()
        list(pool.map(place, warm))
        wait_for_effects(database, len(warm))
        analyze(database)
        used_before = [processor_seconds(server) for server in both]
        begin = time.time()
        list(pool.map(place, timed))
        placed = time.time()
        wait_for_effects(database, len(warm) + len(timed))
        end = time.time()
        used = processor_time({"producer": [own_times], **times}, begin, end)
        for server, before in zip(both, used_before, strict=True):
            used[server.name] = processor_seconds(server) - before
        answers = check_outcome(database, len(warm) + len(timed))
        resends = count_resends(database)
    return {
        "orders": orders,
        "seconds": round(end - begin, 3),
        "orders_per_second": round(orders / (end - begin), 1),
        "placed_per_second": round(orders / (placed - begin), 1),
        "processor_seconds": dict(sorted(used.items(), key=itemgetter(1), reverse=True)),
        "resends": resends,
        "wrong": [answer.claim for answer in answers if not answer.holds],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="From the transaction to both effects.")
    parser.add_argument("--orders", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--threads", type=int, default=4, help="threads that place orders")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-orders-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    print(f"logs are in {directory} until it has gone well")
    result = measure(directory, **vars(options))
    if not result["wrong"]:
        shutil.rmtree(directory)
    results = raw_results.of_now("orders", vars(options), [result])
    print(f"raw results: {raw_results.write(results)}\n{orders_table(results)}")
    print(*result["wrong"], sep="\n")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
