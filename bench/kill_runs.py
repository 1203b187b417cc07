"""What the runs of kills share: a client's load, what it was told, and the end of a run.

Every message carries a number that is handed to `send` once. So what the client was told (queue,
offset, id, number), what explicit pulls read, and the order of each thread can be compared.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.child_process import ChildError, LoggedProcess
from bench.java_programs import SHORT_FLAGS, missing_tools, run_program, start_sender
from bench.positions import Position

PROGRESS_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 300.0
POLL_SECONDS = 0.005
EXAMPLES_MAX = 5
THREADS = 16


class GrowingLines:
    """Counts the finished lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.count = 0

    def refresh(self) -> int:
        """Return the number of lines now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                news = file.read()
            self._read += len(news)
            self.count += news.count(b"\n")
        return self.count

    def wait_for(self, count: int, writer: LoggedProcess) -> None:
        """Return when there are `count` lines.

        Raises ChildError after a minute without them, or when the writer has ended.
        """
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while self.refresh() < count:
            if not writer.alive or time.monotonic() > deadline:
                raise ChildError(f"{self.count} of {count} acknowledgements:\n{writer.output()}")
            time.sleep(POLL_SECONDS)


def violations(acknowledged: Iterable[Position], stored: Iterable[Position]) -> list[str]:
    """Return what contradicts the promise, one sentence per kind with a few examples.

    Args:
        acknowledged: what the client was told, in any order.
        stored: what the queues hold, each queue in the order of its offsets.
    """
    stored = list(stored)
    at_place = {(each.queue_id, each.queue_offset): each for each in stored}
    lost = [
        each for each in acknowledged if at_place.get((each.queue_id, each.queue_offset)) != each
    ]
    times = Counter(each.number for each in stored)
    doubled = [number for number, count in times.items() if count > 1]
    next_offsets: dict[int, int] = {}
    last_numbers: dict[tuple[int, int], int] = {}
    gaps, disorder = [], []
    for each in stored:
        if each.queue_offset != next_offsets.get(each.queue_id, 0):
            gaps.append(each)
        next_offsets[each.queue_id] = each.queue_offset + 1
        if each.number <= last_numbers.get((each.queue_id, each.thread), -1):
            disorder.append(each)
        last_numbers[each.queue_id, each.thread] = each.number
    kinds: list[tuple[str, list[Position] | list[int]]] = [
        ("acknowledged messages are not in their place", lost),
        ("messages are stored twice", doubled),
        ("queue offsets do not follow the one before", gaps),
        ("messages stand before one that their thread sent earlier", disorder),
    ]
    return [
        f"{len(found)} {what}, such as {found[:EXAMPLES_MAX]}" for what, found in kinds if found
    ]


class JavaLoad:
    """Apache's client, sixteen threads on one producer."""

    @staticmethod
    def start_sender(directory: Path, name_server: str, acknowledged: Path) -> LoggedProcess:
        """Start what sends until it is stopped."""
        return start_sender(
            directory,
            namesrv=name_server,
            threads=THREADS,
            retries=0,  # a number is sent once: then a message stored twice is the broker's doing
            seconds=86_400,
            acknowledged=acknowledged,
        )

    @staticmethod
    def read(directory: Path, name_server: str, found: Path) -> None:
        """Read all queues."""
        run_program(
            "PullReader",
            directory,
            timeout=READ_SECONDS_MAX,
            flags=SHORT_FLAGS,
            namesrv=name_server,
            found=found,
        )


class PythonLoad:
    """Our own client, in a process of its own; the same without Java."""

    @staticmethod
    def start_sender(directory: Path, name_server: str, acknowledged: Path) -> LoggedProcess:
        """Start what sends until it is stopped."""
        return PythonLoad._start("send", directory, name_server, acknowledged)

    @staticmethod
    def read(directory: Path, name_server: str, found: Path) -> None:
        """Read all queues."""
        reader = PythonLoad._start("read", directory, name_server, found)
        if reader.wait(READ_SECONDS_MAX) != 0:
            raise ChildError(f"the queues could not be read:\n{reader.output()}")

    @staticmethod
    def _start(verb: str, directory: Path, name_server: str, file: Path) -> LoggedProcess:
        program = [sys.executable, "-m", "bench.python_client", verb]
        return LoggedProcess(
            [*program, "--namesrv", name_server, "--file", str(file)], directory / f"{verb}.log"
        )


LOADS: dict[str, type[JavaLoad] | type[PythonLoad]] = {"java": JavaLoad, "python": PythonLoad}


def options_parser(description: str) -> argparse.ArgumentParser:
    """Return the options of all runs: --kills, --seed, --clients."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--clients", nargs="+", choices=LOADS, help="default: both, if Java is there"
    )
    return parser


def clients_of(options: argparse.Namespace) -> list[str]:
    """Return the clients that send."""
    return options.clients or ["python", *([] if missing_tools() else ["java"])]


def run_all(
    name: str,
    options: argparse.Namespace,
    runs: Mapping[str, Callable[[Path], Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Run the kills one after another, keep the results, and print them.

    Args:
        name: of the results.
        options: see `options_parser`.
        runs: by the name of each: runs it in a folder, and returns a data class with `violations`.
        table: makes the table of the results.

    Return 1 when a promise was broken: then all files stay.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"reliable-mq-{name}-"))
    print(f"seed {options.seed}, files are in {directory} until it has gone well")
    reports = []
    for folder, run in runs.items():
        (directory / folder).mkdir()
        reports.append(run(directory / folder))
        print(reports[-1], flush=True)
    settings = {"kills": options.kills, "seed": options.seed}
    results = raw_results.of_now(name, settings, [asdict(report) for report in reports])
    print(f"raw results: {raw_results.write(results)}\n{table(results)}")
    broken = [sentence for report in reports for sentence in report.violations]
    print(*broken, sep="\n")
    if not broken:
        shutil.rmtree(directory)
    return 1 if broken else 0
