"""What an order costs: statements, round trips, rows, pages, log of the server; processor time.

Two passes over each flow of `bench.order_flow`. In the first one PostgreSQL logs every statement
with its duration; they are counted by the process that sent them. In the second one nothing is
logged, and counters of the server and of /proc say what an order took. Figures of a statement are
elapsed time in the server, which depends on the machine's load; counts and bytes do not.

    python -m bench.order_budget --orders 2000
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg

from bench import raw_results
from bench.order_flow import FLOWS, WARMUP, Shop, running
from bench.table_text import table_text

LOGGED_ORDERS = 300
PREFIX = "%q<%a> "  # the application's name, which libpq takes from PGAPPNAME
LINE = re.compile(r"<(\w[^>]*)> LOG:  duration: ([\d.]+) ms  (\w+)[^:]*: (.*)")
RUNS = ("execute", "statement")  # of the protocol's steps, what the client waits for
WORDS = re.compile(r'^(\w+)(?:.*?\b(?:INTO|FROM|UPDATE)\b)? *"?(\w*)')
STATS = {
    "rows inserted": "SELECT sum(n_tup_ins) FROM pg_stat_user_tables",
    "rows updated": "SELECT sum(n_tup_upd) FROM pg_stat_user_tables",
    "of these in their page": "SELECT sum(n_tup_hot_upd) FROM pg_stat_user_tables",
    "pages of tables": "SELECT sum(heap_blks_hit + heap_blks_read) FROM pg_statio_user_tables",
    "pages of indexes": "SELECT sum(idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables",
    "commits": "SELECT sum(xact_commit) FROM pg_stat_database",
    "records of the log": "SELECT wal_records FROM pg_stat_wal",
    "bytes of the log": "SELECT wal_bytes FROM pg_stat_wal",
    "syncs of the log": "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'",
}
"""What the server counts, and the question that tells its number."""


def kind_of(statement: str) -> str:
    """Return the verb of a statement and the table that it names first."""
    found = WORDS.match(statement.strip())
    if found is None:
        return statement[:30]
    verb, table = found.groups()
    return f"{verb} {table}" if verb in ("INSERT", "UPDATE", "DELETE", "SELECT") else verb


def statements(log: str) -> dict[tuple[str, str], list[float]]:
    """Return the durations of the logged statements, by application and kind."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for application, duration, step, statement in LINE.findall(log):
        if step in RUNS:
            found[application, kind_of(statement)].append(float(duration))
    return found


class Budget:
    """The server's counters, read before and after a pass."""

    def __init__(self, url: str) -> None:
        address = url.replace("+psycopg", "")
        self._connection = psycopg.connect(address, autocommit=True, application_name="budget")

    def close(self) -> None:
        self._connection.close()

    def log_statements(self, *, is_on: bool) -> None:
        """Let the server log every statement with its duration, or none."""
        for setting, value in (
            ("log_min_duration_statement", "0" if is_on else "-1"),
            ("log_line_prefix", PREFIX),
        ):
            self._connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        self._connection.execute("SELECT pg_reload_conf(), pg_sleep(0.5)")

    def counted(self) -> dict[str, float]:
        """Return the server's counters now."""
        self._connection.execute("SELECT pg_sleep(1.5)")  # backends report once a second
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        rows = {name: self._connection.execute(ask.encode()) for name, ask in STATS.items()}
        return {name: float((row.fetchone() or (0,))[0] or 0) for name, row in rows.items()}


def logged(shop: Shop, budget: Budget, log: Path, flow: str) -> list[dict[str, Any]]:
    """Return the statements of one flow, for each order."""
    budget.log_statements(is_on=True)
    begin = log.stat().st_size
    shop.round(flow, LOGGED_ORDERS)
    budget.log_statements(is_on=False)
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    return [
        {
            "flow": flow,
            "sender": sender,
            "statement": kind,
            "an_order": round(len(times) / LOGGED_ORDERS, 3),
            "ms_an_order": round(sum(times) / LOGGED_ORDERS, 4),
        }
        for (sender, kind), times in sorted(statements(text).items())
        if sender != "budget" and len(times) > LOGGED_ORDERS / 100
    ]


def measure(directory: Path, *, orders: int, threads: int) -> list[dict[str, Any]]:
    """Return the budget of every flow."""
    found: list[dict[str, Any]] = []
    os.environ["PGAPPNAME"] = "producer"
    with running(directory, threads) as shop:
        budget = Budget(os.environ["RELIABLE_MQ_DATABASE"])
        try:
            for flow in FLOWS:
                shop.round(flow, WARMUP)
            shop.analyze()
            for flow in FLOWS:
                found += logged(shop, budget, directory / "postgres" / "postgresql.log", flow)
            for flow in FLOWS:
                before = budget.counted()
                took = shop.round(flow, orders)
                after = budget.counted()
                each = {name: round((after[name] - before[name]) / orders, 3) for name in STATS}
                found.append({"flow": flow, "counted": each, "processor_ms": took["processor_ms"]})
        finally:
            budget.close()
    return found


def budget_tables(found: list[dict[str, Any]]) -> str:
    """Return three tables: statements by sender, the server's counters, processor time."""
    rows = [("flow", "sender", "statement", "an order", "ms in the server an order")]
    for each in found:
        if "statement" in each:
            counts = (f"{each['an_order']:.2f}", f"{each['ms_an_order']:.3f}")
            rows.append((each["flow"], each["sender"], each["statement"], *counts))
    flows = {each["flow"]: each for each in found if "counted" in each}

    def side_by_side(head: str, of: str) -> list[tuple[str, ...]]:
        names = next(iter(flows.values()))[of]
        cells = ((name, *(f"{each[of][name]:,.3f}" for each in flows.values())) for name in names)
        return [(head, *flows), *cells]

    counted = side_by_side("an order", "counted")
    used = side_by_side("processor ms for each order", "processor_ms")
    wholes = (f"{sum(each['processor_ms'].values()):.3f}" for each in flows.values())
    used.append(("all", *wholes))
    return "\n".join(table_text(each) for each in (rows, counted, used))


def main() -> int:
    parser = argparse.ArgumentParser(description="What an order costs, station by station.")
    parser.add_argument("--orders", type=int, default=2_000, help="orders of one round")
    parser.add_argument("--threads", type=int, default=4, help="threads that place orders")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-budget-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    print(f"logs are in {directory} until it has gone well")
    found = measure(directory, **vars(options))
    shutil.rmtree(directory)
    results = raw_results.of_now("budget", vars(options), found)
    print(f"raw results: {raw_results.write(results)}\n{budget_tables(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
