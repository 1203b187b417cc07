"""How fast a broker's log is read: the scan alone, and as rows that Spark has, on one core.

A store of so many messages is written by the format (`reconcile_store`), and lies in the cache of
files. Figures are MB of the log by the seconds of processor time of all processes together, so what
else runs on the machine hardly counts; the best round does. What Spark needs to start is left out.

    python -m bench.read_log [--messages 400000] [--body 1024] [--rounds 3] [--only scan]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench import raw_results
from bench.process_tree import cpu_seconds_so_far
from bench.reconcile_shape import CYCLE, Data
from bench.reconcile_store import StoreFiles
from bench.render import figures_table
from reliable_mq.reconcile.brokers.file_store import read_batches, read_layout
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, columns_of

BAR = 150
BEGIN_MS = 1_790_000_000_000
#: what is asked for -> the columns
ASKED = {
    "ids and positions": (
        *("message_id", "topic", "queue_id", "queue_offset", "commit_log_offset", "size"),
    ),
    "all, bodies checked": tuple(LOG_SCHEMA.names),
}


def write_store(root: Path, messages: int, body: int) -> int:
    """Write a store and return how many bytes of the log it has."""
    data = Data(messages // CYCLE * CYCLE, body, BEGIN_MS, 1_000)
    StoreFiles(root, data).write(0)
    layout = read_layout(str(root))
    return layout.sure_end - layout.log_begin


def by_the_scan(root: Path, schema: pa.Schema) -> int:
    """Read a store with this process alone; return how many records it has."""
    return sum(
        batch.num_rows
        for partition in read_layout(str(root)).partitions
        for batch in read_batches(partition, schema)
    )


def best_cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the processor seconds of the best round, of this process and all that it started."""
    found = []
    for _ in range(rounds):
        before = cpu_seconds_so_far()
        work()
        found.append(cpu_seconds_so_far() - before)
    return min(found)


def measured(options: argparse.Namespace, root: Path, size: int) -> list[dict[str, Any]]:
    """Return the figures."""
    found: list[dict[str, Any]] = []

    def note(what: str, seconds: float, bar: str = "") -> None:
        found.append({"what": what, "value": size / 1e6 / seconds, "unit": "MB/s", "bar": bar})

    bars = {"ids and positions": f">= {BAR}"}
    for asked, names in ASKED.items():
        schema = columns_of(names, LOG_SCHEMA)
        seconds = best_cpu_seconds(lambda s=schema: by_the_scan(root, s), options.rounds)  # type: ignore[misc]
        note(f"the scan: {asked}", seconds)
    if options.only == "scan":
        return found
    from reliable_mq.reconcile.runs.spark_session import session  # noqa: PLC0415 - may not be wanted
    from reliable_mq.runtime.java_home import use_java  # noqa: PLC0415

    use_java()
    with session(is_small=False) as spark:
        reader = spark.read.format("reliable_mq_log").option("path", str(root))
        for asked, names in ASKED.items():
            frame = reader.option("columns", ",".join(names)).load()
            writer = frame.write.format("noop").mode("overwrite")
            writer.save()  # what Java has to compile first is no reading
            began = time.perf_counter()
            seconds = best_cpu_seconds(writer.save, options.rounds)
            note(f"rows of Spark: {asked}", seconds, bars.get(asked, ""))
            wall = (time.perf_counter() - began) / options.rounds
            print(f"{asked}: {wall:.1f} s a round on all cores", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Reading a broker's log.")
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--body", type=int, default=1024, help="mean size of a body in bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("scan",))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        size = write_store(root, options.messages, options.body)
        rounds = measured(options, root, size)
    settings: Mapping[str, Any] = {
        "messages": options.messages,
        "body": options.body,
        "rounds": options.rounds,
        "log MB": round(size / 1e6),
    }
    results = raw_results.of_now("read-log", settings, rounds)
    if options.only is None:
        print(f"raw results: {raw_results.write(results)}", file=sys.stderr)
    print(figures_table(results))
    print(json.dumps({each["what"]: round(each["value"]) for each in rounds}), file=sys.stderr)
    barred = [each["value"] for each in rounds if each["bar"]]
    return 0 if all(value >= BAR for value in barred) else 1


if __name__ == "__main__":
    sys.exit(main())
