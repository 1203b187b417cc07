"""How fast PostgreSQL's tables are read: as Arrow batches, and as rows of Spark, on one core.

The ledgers are those of `reconcile_data`. Figures are rows by the seconds of processor time of the
readers, this process or all of Spark's, so what else runs on the machine hardly counts; the best
round does. The server's own time is another figure: rows by the seconds that the server took. What
Spark needs to start is left out. What it needs for any query, many rows or none, is in the rows'
figure, and another figure by itself: of few rows it is most.

    python -m bench.read_tables [--messages 500000] [--body 1024] [--rounds 3] [--only arrow]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.process_tree import cpu_seconds_so_far
from bench.reconcile_data import Ledgers
from bench.render import figures_table
from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB
from reliable_mq.reconcile.databases.spark_table_reader import TableReader
from reliable_mq.reconcile.databases.sql_ranges import IdWindow
from reliable_mq.reconcile.judgement.ledger_events import LOG_COLUMNS, STUB_COLUMNS

BAR = 400_000
_BAR = f">= {BAR:,}"
_NO_ID = "G" * 32  # behind every id
_POSITIONS = ("message_id", "topic", "broker_name", "queue_id", "offset")
#: what is asked for -> the table, its columns, whether the bar is about it
ASKED: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "stubs, ids and positions": (STUB, (*_POSITIONS, "status"), True),
    "logs, ids and positions": (CONSUME_LOG, ("consumer_group", *_POSITIONS, "state"), True),
    "stubs, what decides, contents checked": (STUB, STUB_COLUMNS, False),
    "logs, what decides": (CONSUME_LOG, LOG_COLUMNS, False),
}


def by_arrow(url: str, table: str, columns: tuple[str, ...]) -> int:
    """Read a table with this process alone; return how many rows it has."""
    reader = TableReader(url=url, table=table, prefix="rmq_", window=IdWindow(), columns=columns)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def best_of(work: Callable[[], object], server: int | None, rounds: int) -> tuple[float, float]:
    """Return the processor seconds of the best round: of the readers, and of the server."""

    def taken() -> tuple[float, float]:
        at_server = cpu_seconds_so_far(server)
        return cpu_seconds_so_far() - at_server, at_server

    found = []
    for _ in range(rounds):
        before = taken()
        work()
        after = taken()
        found.append((after[0] - before[0], after[1] - before[1]))
    # Time of a worker that ended without its parent's noticing is lost: that round is none.
    readers, servers = ([each for each in times if each > 0] for times in zip(*found, strict=True))
    return min(readers), min(servers)


def measured(options: argparse.Namespace, ledgers: Ledgers) -> list[dict[str, Any]]:
    """Return the figures."""
    found: list[dict[str, Any]] = []
    url, server = ledgers.postgres.url, ledgers.postgres.pid
    counts: dict[str, int] = {}

    def note(what: str, rows: int, seconds: float, bar: str = "") -> None:
        found.append({"what": what, "value": rows / seconds, "unit": "rows/s", "bar": bar})

    for asked, (table, columns, is_barred) in ASKED.items():
        counts[table] = by_arrow(url, table, columns)  # and the cache of files is warm
        mine, theirs = best_of(
            lambda t=table, c=columns: by_arrow(url, t, c),  # type: ignore[misc]
            *(server, options.rounds),
        )
        note(f"Arrow: {asked}", counts[table], mine, _BAR if is_barred else "")
        note(f"the server: {asked}", counts[table], theirs)
    if options.only == "arrow":
        return found
    from reliable_mq.reconcile.runs.spark_session import session  # noqa: PLC0415 - may not be wanted
    from reliable_mq.runtime.java_home import use_java  # noqa: PLC0415

    use_java()
    with session(is_small=False) as spark:
        reader = spark.read.format("reliable_mq_table").option("url", url)
        for asked, (table, columns, is_barred) in ASKED.items():
            chosen = reader.option("table", table).option("columns", ",".join(columns))
            writer = chosen.load().write.format("noop").mode("overwrite")
            writer.save()  # what Java has to compile first is no reading
            mine, _ = best_of(writer.save, server, options.rounds)
            note(f"rows of Spark: {asked}", counts[table], mine, _BAR if is_barred else "")
        stubs = reader.option("table", STUB).option("columns", ",".join(_POSITIONS))
        writer = stubs.option("idFrom", _NO_ID).load().write.format("noop").mode("overwrite")
        mine, _ = best_of(writer.save, server, options.rounds)
        what = "a query of Spark that finds nothing"
        found.append({"what": what, "value": mine * 1000, "unit": "ms", "bar": ""})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Reading tables of PostgreSQL.")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--body", type=int, default=1024, help="mean size of a content in bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("arrow",))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ledgers = Ledgers(Path(folder) / "ledgers")
        Path(folder).chmod(0o755)
        try:
            ledgers.make(options.messages, options.body)
            rounds = measured(options, ledgers)
        finally:
            ledgers.postgres.stop()
    settings: Mapping[str, Any] = {
        "messages": options.messages,
        "body": options.body,
        "rounds": options.rounds,
    }
    results = raw_results.of_now("read-tables", settings, rounds)
    if options.only is None:
        print(f"raw results: {raw_results.write(results)}", file=sys.stderr)
    print(figures_table(results))
    print(json.dumps({each["what"]: round(each["value"]) for each in rounds}), file=sys.stderr)
    barred = [each["value"] for each in rounds if each["bar"]]
    return 0 if all(value >= BAR for value in barred) else 1


if __name__ == "__main__":
    sys.exit(main())
