"""`reliable-mq dev`: all that an application needs on a developer's machine, in one terminal."""

import fcntl
import os
import queue
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Annotated

import msgspec
import typer
from sqlalchemy.exc import ArgumentError

from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.cli.dev_changes import files_changed, next_of
from reliable_mq.cli.dev_environment import write_environment
from reliable_mq.cli.dev_guard import DevGuard
from reliable_mq.cli.dev_log import DevLog
from reliable_mq.cli.dev_names import name_of
from reliable_mq.cli.dev_options import GivenServers, servers_of
from reliable_mq.cli.dev_probe import MARK, DevNeeds
from reliable_mq.cli.dev_process import DevFailed, DevProcess
from reliable_mq.cli.dev_restarts import Restarts
from reliable_mq.cli.dev_servers import FOLDER, DevServers
from reliable_mq.cli.shared_options import (
    DATABASE_VARIABLE,
    Application,
    Named,
    needed_application,
    takes_options_of,
)
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.redis_urls import hidden

TICK_SECONDS = 0.3
_DJANGO_SETTINGS = "DJANGO_SETTINGS_MODULE"
# What somebody sends to a process. Of others it would die again at once, such as SIGSEGV.
_DEATHS: Mapping[int, str] = {each: each.name for each in (SIGKILL, SIGTERM, SIGINT)}

Folder = Annotated[Path, typer.Option(help="Folder of the servers' data, and of the file env.")]
Reload = Annotated[
    bool, typer.Option("--reload/--no-reload", help="Start again when a file changes.")
]


@takes_options_of(servers_of, "servers_given")
def command(
    argument: Named = "",
    app: Application = "",
    *,
    servers_given: GivenServers,
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many worker processes.")] = 1,
    before: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this before the workers start, such as 'alembic upgrade head'; repeatable.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this beside the workers, such as 'uvicorn web:app'; repeatable.",
        ),
    ] = None,
    folder: Folder = Path(FOLDER),
    reload: Reload = True,
) -> None:
    """Run all that an application needs: servers, workers, resend scheduler, in one log.

    It starts a broker, PostgreSQL and Valkey, unless the application, an option or a variable has
    an address. It creates and migrates the tables. When a file changes, it starts the workers
    again. Ctrl-C ends all processes; they also end if this one is killed.
    """
    application = needed_application(argument, app)
    steps = [_words("--before", each) for each in before or ()]
    beside = [_words("--also", each) for each in also or ()]
    folder.mkdir(parents=True, exist_ok=True)
    log = DevLog()
    with (
        _locked(folder) as lock,
        DevGuard(lock) as guard,
        # A second signal ends this process, and then the guard ends the others.
        stop_on_signal(SIGINT, SIGTERM, SIGHUP) as stopped,
        files_changed(folder, reload, stopped, log) as changes,
    ):
        servers = DevServers(folder, servers_given.addresses, log, guard, servers_given.ports)
        run = DevRun(application, servers, log, guard, processes, steps, beside, stopped)
        try:
            run.run_until_stopped(changes)
        finally:
            run.stop()
            log.write_line("dev", "stopping the servers")
            servers.stop()
            log.write_line("dev", "all processes have ended")


def _words(option: str, line: str) -> list[str]:
    """Return the words of a command.

    Raises:
        UsageError: a quotation does not end.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{option} {line!r:.200}: {error}; quote it as in a shell") from error


class DevRun:
    """The processes of an application; they start again when its files change.

    Args:
        application: MODULE:OBJECT.
        servers: the servers.
        log: gets all lines.
        guard: stops the processes if this one is killed.
        processes: how many worker processes.
        before: the words of commands that run before the workers.
        also: the words of commands that run beside them.
        stopped: set when everything must end.
    """

    def __init__(
        self,
        application: str,
        servers: DevServers,
        log: DevLog,
        guard: DevGuard,
        processes: int,
        before: Sequence[Sequence[str]],
        also: Sequence[Sequence[str]],
        stopped: threading.Event,
    ) -> None:
        self._application = application
        self._servers = servers
        self._log = log
        self._guard = guard
        self._processes = processes
        self._before = before
        self._also = also
        self._stopped = stopped
        self._running: list[DevProcess] = []
        self._failed: list[DevProcess] = []  # ended by themselves, and wait for a change
        self._returns: dict[str, int] = {}  # of servers, when a process was last started, by name
        self._written: dict[str, str] = {}
        self._restarts = Restarts()

    def run_until_stopped(self, changes: "queue.Queue[list[str]]") -> None:
        """Start, and start again after each change.

        Raises:
            DevFailed, LocalServerFailed: a server does not start, or ends again and again.
        """
        self._start()
        while not self._stopped.is_set() and self._log.has_reader:
            self._servers.check()
            self._report_ends()
            self._start_failed()
            changed = next_of(changes, TICK_SECONDS)
            if not changed:
                continue
            self._log.write_line("dev", f"changed: {', '.join(changed)}; starting again")
            self.stop()
            self._start()

    def _start(self) -> None:
        needs = self._needs()
        if self._stopped.is_set():
            return
        if needs is None:
            self._log.write_line("dev", "the application cannot be used; waiting for a change")
            return
        self._servers.start_needed(needs)
        self._write_environment()
        steps: list[Sequence[str]] = [self._ours(_tables_command(), self._application, "--wait")]
        steps += self._before
        for words in steps:
            name = "tables" if words is steps[0] else "before"
            code = self._code_of_step(name, words)
            if self._stopped.is_set():
                return
            if code:
                line = f"{shlex.join(words)} ended with code {code}; waiting for a change"
                self._log.write_line("dev", line)
                return
        self._start_workers(needs)

    def _code_of_step(self, name: str, words: Sequence[str]) -> int:
        """Run a step; return its exit code. One that fails as a server ended runs once more.

        The servers are watched: the step may wait for one that has ended.
        """
        for _ in range(2):
            before = self._servers.returns
            code = self._process(name, words).wait(self._stopped, self._servers.check)
            self._servers.check()
            if not code or self._servers.returns == before or self._stopped.is_set():
                break
            self._log.write_line("dev", f"{name} failed while a server was away; once more")
        return code

    def _start_workers(self, needs: DevNeeds) -> None:
        if needs.has_consumers:
            several = ("--processes", str(self._processes)) if self._processes > 1 else ()
            self._add("worker", self._ours("run", self._application, *several))
        else:
            self._log.write_line("dev", "the application has no consumers: no worker runs")
        if not needs.is_embedded:  # then the worker has the scheduler
            self._add("resend", self._ours("resend", self._application))
        for words in self._also:
            self._add(name_of(words), words)
        self._log.write_line("dev", "started; Ctrl-C ends all processes")

    def _needs(self) -> DevNeeds | None:
        """Return what the application needs now; None: it cannot be imported."""
        words = [sys.executable, "-m", "reliable_mq.cli.dev_probe", self._application]
        environment = self._servers.probe_environment()
        probe = DevProcess("app", words, environment, self._log, self._guard, MARK)
        if probe.wait(self._stopped, self._servers.check) or not probe.marked_lines:
            return None
        return msgspec.json.decode(probe.marked_lines[-1], type=DevNeeds)

    def _write_environment(self) -> None:
        addresses = {**self._servers.addresses, "RELIABLE_MQ_APP": self._application}
        if settings := os.environ.get(_DJANGO_SETTINGS):
            addresses[_DJANGO_SETTINGS] = settings
        path = self._servers.folder / "env"
        write_environment(path, addresses, self._servers.made)
        if addresses == self._written:
            return
        self._written = addresses
        for name, url in addresses.items():
            self._log.write_line("dev", f"{name}={_shown(name, url)}")
        self._log.write_line("dev", f"for another terminal: . {shlex.quote(str(path))}")

    def _ours(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "reliable_mq.cli.entry", *words]

    def _process(self, name: str, words: Sequence[str]) -> DevProcess:
        try:
            environment = self._servers.environment()
            return DevProcess(name, words, environment, self._log, self._guard)
        except OSError as error:
            raise DevFailed(f"{shlex.join(words)} cannot be started: {error.strerror}") from error

    def _add(self, name: str, words: Sequence[str]) -> None:
        self._returns[name] = self._servers.returns
        self._running.append(self._process(name, words))

    def _report_ends(self) -> None:
        for each in [each for each in self._running if each.exit_code is not None]:
            self._running.remove(each)
            code = each.exit_code or 0
            each.stop()
            death = _DEATHS.get(-code)  # nothing is wrong with the code: somebody tries it
            if death and not self._restarts.allow(each.name, time.monotonic()):
                line = f"{Restarts.too_many(each.name)}; waiting for a change"
                self._log.write_line("dev", line)
                continue
            if death:
                line = f"{each.name} was killed by {death}; starting it again"
                self._log.write_line("dev", line)
                self._add(each.name, each.words)
                continue
            if code:
                self._failed.append(each)
            line = f"{each.name} has ended with code {code}; waiting for a change"
            self._log.write_line("dev", line)

    def _start_failed(self) -> None:
        """Start again what failed, and what may have failed only because a server was away."""
        for each in [each for each in self._failed if self._has_returned_for(each)]:
            self._failed.remove(each)
            if self._restarts.allow(each.name, time.monotonic()):
                line = f"a server is back; starting {each.name} again"
                self._log.write_line("dev", line)
                self._add(each.name, each.words)

    def _has_returned_for(self, process: DevProcess) -> bool:
        """Return whether a server was started again since this process was started."""
        return self._servers.returns > self._returns[process.name]

    def stop(self) -> None:
        """Stop the processes, all at once; not the servers."""
        for each in self._running:
            each.begin_stop()
        for each in self._running:
            each.stop()
        self._running.clear()
        self._failed.clear()


def _shown(variable: str, url: str) -> str:
    """Return an address without its password."""
    if variable == "RELIABLE_MQ_REDIS":
        return hidden(url)
    try:
        return shown_url(url) if variable == DATABASE_VARIABLE else url
    except (ArgumentError, ValueError):
        return "…"


def _tables_command() -> str:
    return "migrate" if find_spec("alembic") else "create-tables"


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a folder while the block runs; return its descriptor.

    Raises:
        UsageError: another `dev` uses the folder.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another reliable-mq dev uses {folder}: stop it, or give another --folder"
            ) from error
        yield file.fileno()
