"""What a reconciliation costs the system beside it: the order flow's latency with and without one.

    python -m bench.reconcile_load --messages 1000000 --rounds 3

PostgreSQL holds the stubs and consume logs of a day; orders come at a steady pace through relay,
broker, worker and confirmation, and PostgreSQL itself notes when an order and its effect are
committed. Three kinds of rounds take turns: without a run of `reliable-mq reconcile`, beside one
over all of it, and beside one over an export of it, which asks PostgreSQL nothing: what the one run
adds to the other is what its load on PostgreSQL costs, the rest is that it shares processors and
disk. With `--apart` Spark has the last processor, the flow has the others, in all rounds, and
PostgreSQL has all of them.
Options behind `--` are those of the run over the database (`--db-share 0.25`); SPARK_LOCAL_DIRS in
the environment lets Spark's scratch lie on another disk than the databases.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg

from bench import raw_results
from bench.child_process import LoggedProcess
from bench.order_flow import APPLICATION, LATENCIES, WARMUP
from bench.process_tree import cpu_seconds_so_far
from bench.reconcile_data import Ledgers
from bench.reliable_mq_broker import COMMAND, ReliableMQBroker
from bench.render import figures_table
from reliable_mq.testing.local_servers import LocalValkey

FLOW = "one"
THREADS = 4
RUN_SECONDS_MAX = 900.0
EFFECTS_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
BAR = "<= 1.15"
KINDS = {
    "alone": "alone",
    "export": "beside a reconciliation of an export",
    "beside": "beside a reconciliation",
}


class PacedFlow:
    """Orders that are placed at a steady pace, and how long each took to its effect.

    Args:
        address: of the database, for psycopg.
        rate: orders a second.
        server: PostgreSQL's process, whose processor time is counted.
    """

    def __init__(self, address: str, rate: float, server: int | None = None) -> None:
        self._server = server
        self._connection = psycopg.connect(address, autocommit=True)
        self._rate = rate
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(THREADS)

    def close(self) -> None:
        self._pool.shutdown()
        self._connection.close()

    def server_seconds(self) -> float:
        """Return how much processor time PostgreSQL has taken so far."""
        return cpu_seconds_so_far(self._server)

    def latencies_ms(self, goes_on: Callable[[float], bool]) -> list[float]:
        """Place orders while `goes_on` says so, given the seconds so far; sorted."""
        from bench.order_flow_app import place  # noqa: PLC0415 - after the environment is set

        began, first, placed = time.perf_counter(), next(self._numbers), 0
        working = [self._pool.submit(place, FLOW, first)]
        while goes_on(time.perf_counter() - began):
            placed += 1
            time.sleep(max(0.0, began + placed / self._rate - time.perf_counter()))
            working.append(self._pool.submit(place, FLOW, next(self._numbers)))
        for each in working:
            each.result()
        return self._measured(first, len(working))

    def _measured(self, first: int, count: int) -> list[float]:
        deadline = time.monotonic() + EFFECTS_SECONDS_MAX
        while True:
            rows = self._connection.execute(LATENCIES.encode(), (first - 1,)).fetchall()
            if len(rows) >= count:
                return sorted(float(row[0]) * 1000 for row in rows)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(rows)} of {count} effects")
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def flowing(
    directory: Path, ledgers: Ledgers, rate: float, processors: set[int]
) -> Iterator[PacedFlow]:
    """Start what the order flow needs over the database of the ledgers, on these processors."""
    with contextlib.ExitStack() as stack:
        address = ledgers.postgres.url.replace("+psycopg", "")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET track_commit_timestamp = on")
        ledgers.postgres.restart()
        os.sched_setaffinity(0, processors)  # what is started from here on inherits it
        valkey = LocalValkey(directory / "valkey")
        valkey.start()
        stack.callback(valkey.stop)
        broker = stack.enter_context(ReliableMQBroker(directory / "broker"))
        os.environ["RELIABLE_MQ_BROKER"] = broker.name_server_address
        os.environ["RELIABLE_MQ_DATABASE"] = ledgers.postgres.url
        os.environ["RELIABLE_MQ_REDIS"] = valkey.url
        from bench.order_flow_app import metadata, mq  # noqa: PLC0415 - after the environment is set

        metadata.drop_all(mq.database.engine)
        metadata.create_all(mq.database.engine)
        stack.callback(mq.close)
        for flow, verb in ((FLOW, "run"), ("", "resend")):
            os.environ["FLOW"] = flow
            process = LoggedProcess(
                (*COMMAND, verb, f"{APPLICATION}:mq"), directory / f"{verb}.log"
            )
            stack.callback(process.stop)
        paced = PacedFlow(address, rate, ledgers.postgres.pid)
        stack.callback(paced.close)
        yield paced


def _weigh(pid: int, nice: int) -> None:
    """Give the session of a process the weight of its niceness, as CPUWeight= of systemd does.

    Linux shares processors between sessions first, where each counts the same.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        while os.getsid(pid) != pid:
            time.sleep(POLL_SECONDS)
        group.write_text(f"{nice}")


def judged(run: LoggedProcess) -> None:
    """Wait for the end of a run, which may have findings, but no failure."""
    if run.wait(RUN_SECONDS_MAX) not in (0, 2):
        raise RuntimeError(run.output()[-2000:])


def beside_a_run(
    which: str, paced: PacedFlow, command: Sequence[str], log: Path, nice: int
) -> dict[str, Any]:
    """Measure from the beginning of a run of the command to its end."""
    began, at_server = time.perf_counter(), paced.server_seconds()
    run = LoggedProcess(command, log)
    _weigh(run.child.pid, nice)
    try:
        found = paced.latencies_ms(lambda seconds: run.alive and seconds < RUN_SECONDS_MAX)
        judged(run)
    finally:
        if run.alive:
            run.kill()
    taken = {
        "run_seconds": round(time.perf_counter() - began, 1),
        "server_seconds": round(paced.server_seconds() - at_server, 2),
    }
    return _summary(which, found) | taken


def alone(paced: PacedFlow, seconds: float) -> dict[str, Any]:
    """Measure for some seconds without a run."""
    at_server = paced.server_seconds()
    found = paced.latencies_ms(lambda so_far: so_far < seconds)
    return _summary("alone", found) | {
        "server_seconds": round(paced.server_seconds() - at_server, 2)
    }


def _summary(which: str, latencies: Sequence[float]) -> dict[str, Any]:
    cuts = quantiles(latencies, n=100)
    return {
        "which": which,
        "orders": len(latencies),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
    }


def figures(rounds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians of the rounds, and their ratio beside the bar."""

    def figure(which: str, name: str) -> float:
        return float(median(each[name] for each in rounds if each["which"] == which))

    lines = [
        {"what": f"{name[:3]} of the order flow, {text}", "value": figure(which, name)}
        | {"unit": "ms", "bar": ""}
        for which, text in KINDS.items()
        for name in ("p50_ms", "p99_ms")
    ]
    of_an_order = figure("alone", "server_seconds") / figure("alone", "orders")
    for_the_run = figure("beside", "server_seconds") - of_an_order * figure("beside", "orders")
    what = "PostgreSQL's processor time for a run"
    lines.append({"what": what, "value": for_the_run, "unit": "s", "bar": ""})
    for which, text, bar in (("alone", "alone", ""), ("export", "beside one of an export", BAR)):
        ratio = figure("beside", "p99_ms") / figure(which, "p99_ms")
        lines.append({"what": f"p99, over that {text}", "value": ratio, "unit": "", "bar": bar})
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="The order flow beside a reconciliation.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the ledgers")
    parser.add_argument("--rate", type=float, default=50.0, help="orders a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a round without a run")
    parser.add_argument("--nice", type=int, default=0, help="the niceness of the run")
    parser.add_argument("--apart", action="store_true", help="give Spark a processor of its own")
    parser.add_argument("--directory", type=Path, help="keeps the ledgers for another time")
    parser.add_argument("more", nargs="*", help="further options of the command, behind --")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="reliable-mq-load-"))
    work.chmod(0o755)  # PostgreSQL runs as another user when we are root
    ledgers = Ledgers(options.directory or work / "ledgers")
    ledgers.make(options.messages)
    every = sorted(os.sched_getaffinity(0))
    sparks, flows = (every[-1:], every[:-1] or every) if options.apart else (every, every)
    command = ["setsid", "taskset", "--cpu-list", ",".join(map(str, sparks))]
    command += ["nice", "-n", str(options.nice), *COMMAND, "reconcile", "--out", str(work / "out")]
    of_database = ["--db", ledgers.postgres.url, "--store", str(ledgers.store), *options.more]
    exported = str(work / "export")
    judged(LoggedProcess([*command, *of_database, "--export", exported], work / "export.log"))
    rounds = []
    with flowing(work, ledgers, options.rate, set(flows)) as paced:
        paced.latencies_ms(lambda seconds: seconds < WARMUP / options.rate)
        for number in range(options.rounds):
            rounds.append(alone(paced, options.seconds))
            for which, given in (("export", ["--ledgers", exported]), ("beside", of_database)):
                log, whole = work / f"{which}-{number}.log", [*command, *given]
                rounds.append(beside_a_run(which, paced, whole, log, options.nice))
            print(rounds[-3:], flush=True)
    ledgers.postgres.stop()
    shutil.rmtree(work)
    settings = {
        name: getattr(options, name) for name in ("messages", "rate", "rounds", "nice", "apart")
    }
    settings |= {"more": " ".join(options.more)} if options.more else {}
    results = raw_results.of_now("reconcile-load", settings, figures(rounds))
    results["turns"] = rounds
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
