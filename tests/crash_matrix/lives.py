"""Lives on demand: hands jobs to the zygote and waits for their ends, for many threads."""

import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import msgspec
from bench.child_process import end_by_input
from tests.crash_matrix.worlds import World
from tests.crash_matrix.zygote import Ended, Job

ROOT = Path(__file__).parents[2]


class Lives:
    """The zygote, and who waits for which of its children. A context manager.

    Invariant: one job, one waiter; a waiter ends with its life, or with the zygote.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[int]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "Lives":
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_matrix.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        end_by_input(self._zygote, 10)
        self._reader.join(60)

    def live(self, life: str, world: World, *, at: str = "", steps: str = "") -> int:
        """Let a process live in a world until it ends; return its exit code, or minus its signal.

        Raises:
            EOFError: when the zygote itself has ended.
        """
        future: Future[int] = Future()
        with self._lock:
            job = Job(next(self._numbers), life, world, at, steps)
            self._waiting[job.number] = future
            assert self._zygote.stdin is not None
            self._zygote.stdin.write(msgspec.json.encode(job) + b"\n")
            self._zygote.stdin.flush()
        return future.result()

    def _read(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            ended = msgspec.json.decode(line, type=Ended)
            with self._lock:
                self._waiting.pop(ended.number).set_result(ended.code)
        with self._lock:
            for future in self._waiting.values():
                future.set_exception(EOFError("the zygote has ended"))
