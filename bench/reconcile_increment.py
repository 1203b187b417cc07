"""What a day costs after a long history: an increment beside a run over such a day alone.

    python -m bench.reconcile_increment --history 10000000 --day 1000000 --directory DIRECTORY

The history is reconciled once as the first increment, which is not measured. Then a day comes, its
increment is measured, and beside it a whole run over ledgers that hold nothing but such a day. The
history must be new each time: it keeps the day.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.reconcile import one_run
from bench.reconcile_data import ADDED_SECONDS, BODY_SIZE, Ledgers
from bench.render import figures_table

BAR = "<= 1.5"
# What was added is of the minute after it was asked for; nothing of it may be too young.
GRACE = ("--grace", "1s")


def measure(directory: Path, history: int, day: int, body: int) -> list[dict[str, Any]]:
    """Return what the runs took: the first one over the history, the increment, the day alone."""
    found = []
    past, alone = Ledgers(directory / "history"), Ledgers(directory / "day")
    try:
        past.make(history, body)
        increment = ("--increment", *GRACE)
        out = directory / "out"
        found.append(one_run(past, more=increment, out=out) | {"which": "history"})
        begun = time.monotonic()
        past.make(history + day, body)
        time.sleep(max(0.0, begun + ADDED_SECONDS + 5 - time.monotonic()))
        found.append(one_run(past, more=increment, out=out, first=history) | {"which": "increment"})
    finally:
        past.postgres.stop()
    try:
        alone.make(day, body)
        found.append(one_run(alone, more=GRACE) | {"which": "day alone"})
    finally:
        alone.postgres.stop()
    return found


def figures(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return seconds of each run, and what of the day alone the increment takes, beside the bar."""
    seconds = {each["which"]: each["seconds"] for each in found}
    lines = [
        {"what": f"{each['which']}, {each['messages']:,} messages", "value": each["seconds"]}
        | {"unit": "s", "bar": ""}
        for each in found
    ]
    ratio = seconds["increment"] / seconds["day alone"]
    return [*lines, {"what": "increment over day alone", "value": ratio, "unit": "", "bar": BAR}]


def main() -> int:
    parser = argparse.ArgumentParser(description="An increment after a long history.")
    parser.add_argument("--history", type=int, default=10_000_000, help="messages before the day")
    parser.add_argument("--day", type=int, default=1_000_000, help="messages of the day")
    parser.add_argument("--body", type=int, default=BODY_SIZE, help="mean size of a body in bytes")
    parser.add_argument("--directory", type=Path, help="for the ledgers; removed afterwards")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-increment-", dir=options.directory))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    found = measure(directory, options.history, options.day, options.body)
    shutil.rmtree(directory)
    settings = {name: getattr(options, name) for name in ("history", "day", "body")}
    results = raw_results.of_now("reconcile-increment", settings, figures(found))
    results["runs"] = found
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
