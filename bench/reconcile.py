"""How long `reliable-mq reconcile` takes, cold, and what it needs: run as users run it.

    python -m bench.reconcile --messages 1000000 10000000 --directory DIRECTORY

makes the ledgers (`reconcile_data`; those of an earlier measurement are used again) and runs the
command on them in a process of its own, as often as asked for. Printed are the seconds from the
start of the process to its end, the processor seconds of the command and beside it those of
PostgreSQL, which shares the machine's processors; the peak of what its processes held, Spark's and
Python's together; the largest partition; and how the time grew with the number of messages. A run
whose verdicts are not those that the ledgers were made to have is a failure.
"""

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.orders_end_to_end import processor_seconds
from bench.process_tree import run_watched
from bench.quiet import busy_seconds
from bench.reconcile_data import BODY_SIZE, Ledgers
from bench.reliable_mq_broker import COMMAND
from bench.render import reconcile_table
from bench.spark_event_log import SPARK_SETTINGS, largest_partition, stages

CLEAN, FINDINGS = 0, 2


class ReconcileFailed(RuntimeError):
    """A run ended with another exit code or other verdicts than it should."""


def one_run(
    ledgers: Ledgers,
    *,
    more: Sequence[str] = (),
    conf: Sequence[str] = (),
    out: Path | None = None,
    first: int = 0,
) -> dict[str, Any]:
    """Reconcile once; return what it took.

    Args:
        ledgers: what is reconciled.
        more: further options of the command.
        conf: settings of Spark, NAME=VALUE.
        out: where the output stays; None: nowhere.
        first: the first message that is judged; before it only those with a fault are.

    Raises:
        ReconcileFailed: when it failed or found something else than there is.
    """
    data = ledgers.data
    if data is None:
        raise ReconcileFailed("there are no ledgers yet")
    work = Path(tempfile.mkdtemp(prefix="reliable-mq-reconcile-", dir=ledgers.directory))
    events = work / "events"
    events.mkdir()
    out = out or work / "out"
    command = [*COMMAND, "reconcile", "--db", ledgers.postgres.url, "--store", str(ledgers.store)]
    command += ["--out", str(out), *more]
    server_before, busy_before = processor_seconds(ledgers.postgres), busy_seconds()
    settings = [f"{name}={value}" for name, value in SPARK_SETTINGS.items()]
    settings += [f"spark.eventLog.dir={events.as_uri()}", *conf]
    words = [word for setting in settings for word in ("--conf", setting)]
    environment = {"PYSPARK_SUBMIT_ARGS": shlex.join((*words, "pyspark-shell"))}
    used = run_watched(command, work / "run.log", environment)
    server = processor_seconds(ledgers.postgres) - server_before
    others = busy_seconds() - busy_before - used.cpu_seconds - server
    said = (work / "run.log").read_text(errors="replace")
    expected = data.expected(first)
    if used.exit_code != (FINDINGS if len(expected) > 1 else CLEAN):
        raise ReconcileFailed(f"exit code {used.exit_code}: {said[-2000:]}")
    summary = json.loads((out / "summary.json").read_text())
    if summary["verdicts"] != expected:
        raise ReconcileFailed(f"{summary['verdicts']} instead of {expected}")
    noted = largest_partition(events) | {"stages": stages(events)}
    shutil.rmtree(work)
    return {
        "messages": data.messages - first,
        **used._asdict(),
        "server_cpu_seconds": round(server, 2),
        "others_processors": round(max(others, 0.0) / used.seconds, 2),
        "session_seconds": summary["seconds"]["session"],
        **noted,
    }


def measure(
    directory: Path,
    sizes: list[int],
    *,
    body: int,
    rounds: int,
    more: Sequence[str] = (),
    conf: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Run every size `rounds` times; return what each run took."""
    found = []
    for size in sizes:
        ledgers = Ledgers(directory / f"{size}-{body}")
        try:
            ledgers.make(size, body)
            for _ in range(rounds):
                found.append(one_run(ledgers, more=more, conf=conf))
                print(json.dumps(found[-1]), flush=True)
        finally:
            ledgers.postgres.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="A reconciliation, cold, from start to end.")
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--body", type=int, default=BODY_SIZE, help="mean size of a body in bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="keeps the ledgers for another time")
    parser.add_argument(
        "--conf", nargs="*", default=[], metavar="NAME=VALUE", help="settings of Spark, for trials"
    )
    parser.add_argument("more", nargs="*", help="further options of the command, behind --")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="reliable-mq-reconcile-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    chosen = {"body": options.body, "rounds": options.rounds}
    found = measure(directory, options.messages, **chosen, more=options.more, conf=options.conf)
    if options.directory is None:
        shutil.rmtree(directory)
    tried = {"conf": " ".join(options.conf)} if options.conf else {}
    results = raw_results.of_now("reconcile", chosen | tried, found)
    print(f"raw results: {raw_results.write(results)}\n{reconcile_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
