"""Messages worked a second beside procrastinate's jobs, on one PostgreSQL that syncs every commit.

A backlog is written first and worked afterwards: by procrastinate's worker at concurrency 16, by
our worker with a transaction for each message, and by our worker with up to 64 in one. The work is
the same row. A speed is that of the effects' commits, from the first to the last one, as PostgreSQL
noted them, so that nobody's start counts; each has a database of its own, and they take turns.
What is deferred: jobs of 16 coroutines; for ours orders with their stubs, of `bench.order_flow`'s
threads, until the broker has stored the last one. procrastinate's workers promise less: a job whose
worker dies stays `doing` until somebody looks for it, and its effect may come twice.

procrastinate is no dependency of ours:

    pip install 'procrastinate>=3,<4'
    python -m bench.rival_procrastinate --messages 3000 --rounds 3
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from bench import raw_results
from bench.child_process import ChildError, LoggedProcess
from bench.order_flow import (
    APPLICATION,
    POLL_SECONDS,
    PROGRESS_SECONDS_MAX,
    Shop,
    flow_servers,
)
from bench.reliable_mq_broker import COMMAND
from bench.render import rival_table

RIVAL = "procrastinate"
RIVAL_APPLICATION = "bench.rival_procrastinate_app"
RIVAL_TABLE = "CREATE TABLE rival_effect (id bigserial PRIMARY KEY, order_id bigint, amount text)"
WARMUP = 200
UNSENT = "SELECT count(*) FROM rmq_message_stub WHERE status = 0 AND broker_name IS NULL"
SPEED = """
    SELECT count(*), extract(epoch FROM max(at) - min(at))
    FROM (SELECT pg_xact_commit_timestamp(xmin) AS at FROM {table} WHERE id > %s) AS commits
"""


class Ledger:
    """The effects of one side, asked for past everything that is measured."""

    def __init__(self, url: str, table: str) -> None:
        self.connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._table = table

    def number(self, question: str) -> int:
        """Return the one number that answers a question."""
        row = self.connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0] or 0)

    def newest(self) -> int:
        """Return the number of the newest effect."""
        return self.number(f"SELECT max(id) FROM {self._table}")

    def wait_for(self, question: str, wanted: int) -> None:
        """Return when a question has this answer; ChildError after a minute without progress."""
        last, deadline = -1, time.monotonic() + PROGRESS_SECONDS_MAX
        while (found := self.number(question)) != wanted:
            if found != last:
                last, deadline = found, time.monotonic() + PROGRESS_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise ChildError(f"stuck at {found}, wanted {wanted}: {question}")
            time.sleep(POLL_SECONDS)

    def worked(self, command: list[str], log: Path, before: int, count: int) -> float:
        """Let a worker work a backlog; return effects a second from the first to the last one."""
        worker = LoggedProcess(command, log)
        try:
            self.wait_for(f"SELECT count(*) FROM {self._table} WHERE id > {before}", count)
        finally:
            worker.stop()
        row = self.connection.execute(
            SPEED.format(table=self._table).encode(), (before,)
        ).fetchone()
        assert row is not None
        return (int(row[0]) - 1) / float(row[1])


class Sides(NamedTuple):
    """What runs during the measurement."""

    directory: Path
    shop: Shop
    ours: Ledger
    theirs: Ledger

    def round(self, side: str, count: int) -> dict[str, Any]:
        """Write a backlog and have it worked."""
        measured = self._their_round(count) if side == RIVAL else self._our_round(side, count)
        deferred, worked = measured
        return {"side": side, "deferred": round(deferred, 1), "worked": round(worked, 1)}

    def _our_round(self, flow: str, count: int) -> tuple[float, float]:
        before, begin = self.ours.newest(), time.perf_counter()
        self.shop.place(flow, count)
        self.ours.wait_for(UNSENT, 0)
        deferred = count / (time.perf_counter() - begin)
        os.environ["FLOW"] = flow
        command = [*COMMAND, "run", f"{APPLICATION}:mq"]
        return deferred, self.ours.worked(command, self.directory / f"{flow}.log", before, count)

    def _their_round(self, count: int) -> tuple[float, float]:
        before, deferred = self.theirs.newest(), asyncio.run(defer(count))
        command = [sys.executable, "-m", "procrastinate", "--app", f"{RIVAL_APPLICATION}.app"]
        command += ["worker", "--concurrency", "16"]
        return deferred, self.theirs.worked(command, self.directory / "rival.log", before, count)


async def defer(count: int) -> float:
    """Defer jobs, as many at once as they are worked; return how many a second."""
    from bench.rival_procrastinate_app import CONCURRENCY, app, write_effect  # noqa: PLC0415

    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await write_effect.defer_async(order_id=number, amount="12.50")

    async with app.open_async():
        begin = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
        return count / (time.perf_counter() - begin)


async def make_schema() -> None:
    """Make procrastinate's tables."""
    from bench.rival_procrastinate_app import app  # noqa: PLC0415 - after the environment is set

    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@contextlib.contextmanager
def running(directory: Path, threads: int) -> Iterator[Sides]:
    """Start the servers, the broker and our resend scheduler; make the tables of both."""
    with contextlib.ExitStack() as stack:
        postgres, _, _ = stack.enter_context(flow_servers(directory))
        with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE DATABASE rival")
        rival = postgres.url_of("rival")
        os.environ["RIVAL_DATABASE"] = rival.replace("+psycopg", "")
        ours, theirs = Ledger(postgres.url, "flow_effect"), Ledger(rival, "rival_effect")
        for ledger in (ours, theirs):
            stack.callback(ledger.connection.close)
        asyncio.run(make_schema())
        theirs.connection.execute(RIVAL_TABLE)
        resend = LoggedProcess((*COMMAND, "resend", f"{APPLICATION}:mq"), directory / "resend.log")
        stack.callback(resend.stop)
        shop = Shop(postgres.url, threads, dict)
        stack.callback(shop.close)
        yield Sides(directory, shop, ours, theirs)


def measure(directory: Path, *, messages: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Let the sides take turns; return what every round came to."""
    sides = (RIVAL, "one", "batch")
    with running(directory, threads) as both:
        for side in sides:
            both.round(side, WARMUP)
        for ledger in (both.ours, both.theirs):
            ledger.connection.execute("ANALYZE")
        return [both.round(side, messages) for _ in range(rounds) for side in sides]


def main() -> int:
    parser = argparse.ArgumentParser(description="Worked a second, beside procrastinate.")
    parser.add_argument("--messages", type=int, default=3_000, help="messages of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4, help="threads that place orders")
    options = parser.parse_args()
    if importlib.util.find_spec("procrastinate") is None:
        print("procrastinate is not installed: pip install 'procrastinate>=3,<4'", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-rival-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    print(f"logs are in {directory} until it has gone well")
    found = measure(directory, **vars(options))
    shutil.rmtree(directory)
    settings = vars(options) | {"procrastinate": importlib.metadata.version("procrastinate")}
    results = raw_results.of_now("rival", settings, found)
    print(f"raw results: {raw_results.write(results)}\n{rival_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
