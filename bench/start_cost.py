"""What a start costs: imports, commands, the broker until its ready line; processor time first.

Every start is a process of its own. *Warm* starts follow each other. Before a *cold* start, the
files of Python, of the packages and of ours leave the page cache of the system, as after a boot;
what other processes have mapped stays there. Before a start *not compiled*, our package has no
compiled files, as after `uv pip install`; it writes none. Exits with 1 when a start with a bar
takes more processor time, or warm more time by the clock.

    python -m bench.start_cost [--rounds 7]
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import reliable_mq
from bench import raw_results
from bench.render import start_table

ENTRY = (sys.executable, "-m", "reliable_mq.cli.entry")
READY = b"ready "
SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db", broker="127.0.0.1:9876",
                redis="redis://127.0.0.1:6379/0")
"""
WARM, COLD, UNCOMPILED = "warm", "cold", "not compiled"


class Start(NamedTuple):
    """A start: its words, the most seconds that it may take, whether it ends with a ready line."""

    what: str
    words: Sequence[str]
    bar: float | None = None
    is_server: bool = False


def starts(folder: Path) -> list[Start]:
    """Return what is started, in a folder with an application and its tables."""
    python = (sys.executable, "-c")
    broker = ("broker", "--port", "0", "--namesrv-port", "0", "--store", str(folder / "store"))
    return [
        Start("python -c pass", (*python, "pass")),
        Start("import reliable_mq", (*python, "import reliable_mq"), 0.25),
        Start("from reliable_mq import Client", (*python, "from reliable_mq import Client")),
        Start("import sqlalchemy.ext.asyncio", (*python, "import sqlalchemy.ext.asyncio")),
        Start(
            "from reliable_mq import ReliableMQ", (*python, "from reliable_mq import ReliableMQ")
        ),
        Start("reliable-mq --help", (*ENTRY, "--help"), 0.35),
        Start("reliable-mq stub list", (*ENTRY, "stub", "list", "--app", "shop:mq")),
        Start("reliable-mq broker, ready", (*ENTRY, *broker), 0.4, is_server=True),
    ]


def used(start: Start, folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the processor seconds and the seconds of a start."""
    before = time.perf_counter()
    with subprocess.Popen(
        list(start.words),
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as child:
        assert child.stdout is not None
        if start.is_server:
            line = child.stdout.readline()
            seconds, processor = time.perf_counter() - before, _processor_seconds(child.pid)
            child.send_signal(signal.SIGTERM)
            child.stdout.read()
            assert line.startswith(READY), line
        else:
            said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if not start.is_server:
        seconds, processor = time.perf_counter() - before, usage.ru_utime + usage.ru_stime
        assert child.returncode == 0, said
    return processor, seconds


def _processor_seconds(pid: int) -> float:
    """Return what all threads of a process have used so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def leave_page_cache() -> None:
    """Let the system forget the files that a start reads, as far as nobody has mapped them."""
    for path in _files():
        with contextlib.suppress(OSError):
            _forget(path)


@cache
def _files() -> list[Path]:
    paths = sysconfig.get_paths()
    folders = {Path(paths[name]) for name in ("stdlib", "purelib", "platlib")}
    folders.add(Path(reliable_mq.__file__).parent)
    found = (path for folder in folders for path in folder.rglob("*"))
    return [path for path in found if path.suffix in {".py", ".pyc", ".so"}]


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def as_(state: str) -> Iterator[Mapping[str, str]]:
    """Bring about what a start finds; yields the variables of its environment."""
    if state == COLD:
        leave_page_cache()
    if state != UNCOMPILED:
        yield {"PYTHONDONTWRITEBYTECODE": ""}
        return
    package = Path(reliable_mq.__file__).parent
    for compiled in package.rglob("*.pyc"):
        compiled.unlink()
    yield {"PYTHONDONTWRITEBYTECODE": "1"}


def measure(rounds: int, cold_rounds: int) -> list[dict[str, Any]]:
    """Return each start's processor seconds and seconds."""
    found = []
    with tempfile.TemporaryDirectory(prefix="reliable-mq-start-") as made:
        folder = Path(made)
        (folder / "shop.py").write_text(SHOP)
        tables = (*ENTRY, "create-tables", "--app", "shop:mq")
        subprocess.run(tables, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for state, times in ((UNCOMPILED, rounds), (WARM, rounds), (COLD, cold_rounds)):
            for start in starts(folder):
                if state == WARM:
                    with as_(state) as environment:
                        used(start, folder, environment)  # it writes what is compiled
                each = []
                for _ in range(times):
                    with as_(state) as environment:
                        each.append(used(start, folder, environment))
                found.append(
                    {
                        "what": start.what,
                        "state": state,
                        "bar": start.bar,
                        "processor_seconds": [round(one, 4) for one, _ in each],
                        "seconds": [round(one, 4) for _, one in each],
                    }
                )
                print(start.what, state, f"{median(one for one, _ in each):.3f}", flush=True)
    return found


def is_dear(figures: Mapping[str, Any]) -> bool:
    """Return whether a start takes more than its bar."""
    if figures["bar"] is None or figures["state"] == UNCOMPILED:
        return False
    names = ("processor_seconds", "seconds") if figures["state"] == WARM else ("processor_seconds",)
    return any(median(figures[name]) > figures["bar"] for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a start costs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cold-rounds", type=int, default=3)
    options = parser.parse_args()
    settings = {"rounds": options.rounds, "cold rounds": options.cold_rounds}
    figures = measure(options.rounds, options.cold_rounds)
    results = raw_results.of_now("start", settings, figures)
    print(start_table(results), raw_results.write(results), sep="\n")
    return int(any(is_dear(each) for each in results["rounds"]))


if __name__ == "__main__":
    sys.exit(main())
