"""Programs of Python as forks of one process that has imported what they need: that takes longest.

A program has a folder, variables, arguments and an output of its own, and ends as any other does.
What a start of Python does, and what a program imports first, is not seen by it.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import Self

from bench.child_process import LoggedProcess
from tests.waiting import LIMIT_LOOK_SECONDS, Budget

ROOT = Path(__file__).parents[1]
_SERVE = "from tests.forked_programs import serve; serve()"
_PATHS = "PYTHONPATH"


class Programs:
    """Begins programs.

    Args:
        modules: what is imported before all of them, once. None of them may start a thread.
    """

    def __init__(self, *modules: str) -> None:
        self._folder = TemporaryDirectory(prefix="programs-")
        self._codes: dict[int, int] = {}
        self._rest = b""
        self._reading = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill what still runs."""
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS…` to its end, at most so many seconds of an idle machine."""
        told = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        program = self.begin(words, *told, cwd=cwd, env=env)
        with program.killed_in_the_end():
            code = program.wait(timeout)
        output, errors = (path.read_text(errors="replace") for path in told)
        return subprocess.CompletedProcess(words, code, output, errors)

    def begin(
        self,
        words: Sequence[str],
        output: Path,
        errors: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "Program":
        """Begin `python WORDS…`.

        Args:
            words: a file or `-m MODULE` or `-c CODE`, and the arguments of it.
            output: the file that it prints to.
            errors: the file for its errors; may be the same.
            cwd: where; None: where this process is.
            env: its variables; None: those of this process.
        """
        told = [str(output), str(errors)]
        job = [list(words), str(cwd or Path.cwd()), dict(env or os.environ), told]
        for path in told:
            Path(path).write_bytes(b"")
        assert self._process.stdin is not None
        with self._reading:  # the next one that begins is this one
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            while (begun := self._take()) is None:
                pass
        return Program(self, begun, words)

    def code_of(self, pid: int, seconds: float = 0.0) -> int | None:
        """Return how a program ended; None: it runs, also after so many seconds."""
        with self._reading:
            if pid not in self._codes and self._is_told(seconds):
                self._take()
            return self._codes.get(pid)

    def _is_told(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _take(self) -> int | None:
        """Read what is told; return the process id of a program that has begun, if any has."""
        assert self._process.stdout is not None
        given = self._process.stdout.read(65_536)
        assert given, "the process that begins programs has ended"
        *lines, self._rest = (self._rest + given).split(b"\n")
        begun = None
        for pid, *code in (map(int, line.split()) for line in lines):
            if code:
                (self._codes[pid],) = code
            else:
                begun = pid
        return begun


class Program:
    """A program that has begun, as `subprocess.Popen` has it."""

    def __init__(self, programs: Programs, pid: int, words: Sequence[str]) -> None:
        self.pid = pid
        self.args = words
        self._programs = programs

    @property
    def returncode(self) -> int | None:
        """How it ended; None: it runs."""
        return self._programs.code_of(self.pid)

    def poll(self) -> int | None:
        """Return how it ended; None: it runs."""
        return self.returncode

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end, at most so many seconds of an idle machine.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        budget = Budget(seconds)
        while (code := self._programs.code_of(self.pid, LIMIT_LOOK_SECONDS)) is None:
            if not budget.is_left():
                raise subprocess.TimeoutExpired(self.args, seconds)
        return code

    @contextmanager
    def killed_in_the_end(self) -> Iterator[Self]:
        """Kill it at the end of the block, if it runs."""
        try:
            yield self
        finally:
            if self.poll() is None:
                self.kill()
                self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class ForkedProcess(LoggedProcess):
    """A program whose output goes to a file, as that of any child of a measurement does."""

    def __init__(self, programs: Programs, words: Sequence[str], log: Path) -> None:
        self.log = log
        self.child = programs.begin(words, log, log)  # type: ignore[assignment]


def serve() -> None:
    """Import the modules that are named as arguments; then begin what each line of the input says.

    For each, its process id is printed, and when it has ended, that and its exit code.
    """
    for name in sys.argv[1:]:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork could inherit a lock that nobody holds"
    gc.freeze()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    for line in _lines(woken, running):
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wakes)
            _become(*json.loads(line))
            return  # and end as every interpreter does
        running.add(child)
        os.write(1, b"%d\n" % child)
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _lines(woken: int, running: set[int]) -> Iterator[bytes]:
    """Yield the lines of the input; tell of those that end meanwhile."""
    rest = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4_096)
            for child in list(running):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    running.remove(child)
                    os.write(1, b"%d %d\n" % (child, os.waitstatus_to_exitcode(status)))
        if 0 in ready:
            given = os.read(0, 65_536)
            if not given:
                return
            *lines, rest = (rest + given).split(b"\n")
            yield from lines


def _become(words: list[str], folder: str, variables: dict[str, str], told: list[str]) -> None:
    ours = ["", str(ROOT), *os.environ.get(_PATHS, "").split(os.pathsep)]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    for descriptor, name in enumerate((os.devnull, *told)):
        opened = os.open(name, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    first, *others = words
    begins = str(Path(first).parent.absolute()) if not first.startswith("-") else folder
    theirs = [each for each in variables.get(_PATHS, "").split(os.pathsep) if each]
    sys.path[:] = [begins, *theirs, *(each for each in sys.path if each not in ours)]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    _run(first, others)


def _run(first: str, others: list[str]) -> None:
    if first == "-c":
        code, *sys.argv[1:] = others
        sys.argv[0] = first
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv[:] = others
        if not hasattr(sys.modules.get(others[0]), "__path__"):
            sys.modules.pop(others[0], None)  # it is `__main__` now
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *others]
        runpy.run_path(first, run_name="__main__")
