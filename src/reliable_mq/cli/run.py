"""`reliable-mq run`: runs the consumers of an application, in one process or several."""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_signals import WorkerDied, stop_on_signal
from reliable_mq.cli import log_options, metrics
from reliable_mq.cli.database_options import loaded
from reliable_mq.cli.shared_options import Application, Named, needed_application
from reliable_mq.extras import extra_of
from reliable_mq.runtime.heartbeat import Heartbeat, without_probes
from reliable_mq.runtime.lifeline import Lifeline, when_cut
from reliable_mq.settings import EMBEDDED
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
ASK_SECONDS = 1.0
"""How often a worker is asked to end: one that is just starting may miss a request."""
RESTART_SECONDS = 2.0
SHORT_LIFE_SECONDS = 10.0
SHORT_LIVES_MAX = 5
"""Failures of a worker soon after its start, in a row, after which it counts as failing.

The command ends if all workers are failing. Otherwise it starts the failing one less often.
"""
FAILING_RESTART_SECONDS = 60.0


def command(
    argument: Named = "",
    app: Application = "",
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    is_measured: Annotated[bool, typer.Option("--measured", hidden=True)] = False,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run the consumers of an application until SIGTERM or SIGINT.

    With several processes, one port serves the sums of their metrics. If the first process is
    killed, the others finish their running handlers and end.
    """
    application = needed_application(argument, app)
    log_options.note_shape(log_format)
    mq = loaded(application)
    log_options.write_log(log_format or mq.settings.log_format, log_level or mq.settings.log_level)
    if processes > 1:
        words = [sys.executable, "-m", "reliable_mq.cli.entry", "run", application]
        words += ["--log-format", log_format] if log_format else []
        words += ["--log-level", log_level] if log_level else []
        _run_workers(mq, words, processes, (metrics_host, metrics_port))
        return
    if is_measured:
        mq.meter().measure_for_parent()
    elif metrics_port:
        mq.register_metrics()
        metrics.serve_metrics(metrics_host, metrics_port)
    if lifeline is None:
        mq.run()
        return
    with _bound_to_supervisor(lifeline) as is_orphan:
        mq.run()
    if is_measured and is_orphan.is_set():  # nobody else removes it
        shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)


@contextmanager
def _bound_to_supervisor(lifeline: int) -> Iterator[threading.Event]:
    """Ask this process to end when the supervisor has ended; the event says that it has.

    A second request to end changes nothing here. A terminal and systemd signal the workers, and
    then the supervisor does, too: that must not cut off the handlers that still run.
    """
    is_orphan = threading.Event()

    def end() -> None:
        is_orphan.set()
        while True:  # the first signals may come before the block listens
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(ASK_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)  # the usual effect of a second one
    when_cut(lifeline, end)
    yield is_orphan


def _run_workers(
    mq: ReliableMQ, words: list[str], processes: int, metrics_at: tuple[str, int]
) -> None:
    """Run an application in several processes.

    Args:
        mq: the application.
        words: the command line of a worker.
        processes: how many.
        metrics_at: host and port of their metrics; port 0: serve none.
    """
    if mq.settings.broker.startswith(EMBEDDED):
        raise typer.BadParameter(
            "several processes cannot embed one broker: run reliable-mq broker"
        )
    host, port = metrics_at
    if not port:
        _supervise([words] * processes, os.environ)
        return
    with extra_of("prometheus_client"):
        from reliable_mq.cli.worker_metrics import WorkerMetrics  # noqa: PLC0415 - an extra
    measured = WorkerMetrics()
    try:
        mq.meter(measured.registry).register_databases()
        metrics.serve_metrics(host, port, measured.registry)
        words = [*words, "--measured", "--metrics-port", "0"]
        _supervise([words] * processes, measured.environment, measured.worker_ended)
    finally:
        measured.close()


class _Worker:
    """Runs one worker process, and starts it again when it ends.

    Invariant: between two starts are at least `RESTART_SECONDS`, and `FAILING_RESTART_SECONDS`
    while it is failing.

    Args:
        words: its command line.
        environment: its variables.
        on_end: called with its number when it has ended.
        lifeline: by which it notices that this process has ended.
    """

    def __init__(
        self,
        words: list[str],
        environment: Mapping[str, str],
        on_end: Callable[[int], None],
        lifeline: Lifeline,
    ) -> None:
        self._words = words
        self._environment = environment
        self._on_end = on_end
        self._lifeline = lifeline
        self._short_lives = 0
        self._has_ended = False
        self._start()

    @property
    def is_failing(self) -> bool:
        return self._short_lives >= SHORT_LIVES_MAX

    @property
    def is_running(self) -> bool:
        return self.child.poll() is None

    def _start(self) -> None:
        self._born = time.monotonic()
        self.child = subprocess.Popen(  # noqa: S603 - our own command
            [*self._words, "--lifeline", str(self._lifeline.descriptor)],
            env=without_probes(self._environment),
            pass_fds=(self._lifeline.descriptor,),
        )
        self._has_ended = False

    def restart_if_due(self) -> None:
        """Start it again if it has ended and its wait is over."""
        code, lived = self.child.poll(), time.monotonic() - self._born
        if code is not None and not self._has_ended:
            self._has_ended = True
            self._on_end(self.child.pid)
            self._count(code, lived)
        elif code is None and lived >= SHORT_LIFE_SECONDS:
            self._short_lives = 0
        # A worker that ends at once is not started again at once.
        wait = FAILING_RESTART_SECONDS if self.is_failing else RESTART_SECONDS
        if self._has_ended and lived >= wait:
            try:
                self._start()
            except OSError as error:  # no memory, or no more processes: the others go on
                application_events.WORKER_NOT_STARTED.log(
                    log, seconds=wait, error=error.strerror or str(error)
                )

    def _count(self, code: int, lived: float) -> None:
        application_events.WORKER_ENDED.log(log, pid=self.child.pid, code=code)
        # A death by a signal is not a failure of the application.
        is_short = code > 0 and lived < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives == SHORT_LIVES_MAX:
            application_events.WORKER_FAILING.log(
                log,
                times=SHORT_LIVES_MAX,
                seconds=SHORT_LIFE_SECONDS,
                again_seconds=FAILING_RESTART_SECONDS,
                command=shlex.join(self._words),
            )

    def ask_to_end(self) -> None:
        """Send SIGTERM, if it runs."""
        if self.is_running:
            self.child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it runs, and wait for its end."""
        if self.is_running:
            self.child.kill()
        self.child.wait()


def _supervise(
    commands: list[list[str]],
    environment: Mapping[str, str],
    on_end: Callable[[int], None] = lambda _number: None,
) -> None:
    """Keep worker processes running; forward a request to stop.

    When it returns or raises, no worker lives.

    Args:
        commands: the command lines of the workers.
        environment: the environment of the workers.
        on_end: called with the number of each process that has ended.

    Raises:
        WorkerDied: every worker fails repeatedly at its start.
    """
    heart, workers, is_well = Heartbeat(), list[_Worker](), True
    with Lifeline() as lifeline, _none_left(workers):
        try:
            with stop_on_signal() as stopped:
                for words in commands:
                    workers.append(_Worker(words, environment, on_end, lifeline))
                while is_well and not stopped.wait(POLL_SECONDS):
                    heart.beat()
                    for each in workers:
                        each.restart_if_due()
                    is_well = not all(each.is_failing for each in workers)
        finally:
            heart.end()
        _end(workers)
    if not is_well:
        raise WorkerDied(
            f"each worker failed {SHORT_LIVES_MAX} times in a row within "
            f"{SHORT_LIFE_SECONDS:g} s of its start; its last output says why"
        )


@contextmanager
def _none_left(workers: list[_Worker]) -> Iterator[None]:
    """Kill the workers that still run after the block: after an error or a second Ctrl-C."""
    try:
        yield
    finally:
        for each in workers:
            each.kill()


def _end(workers: list[_Worker]) -> None:
    """Ask the workers to end, again and again, until none runs."""
    asked = -ASK_SECONDS
    while any(each.is_running for each in workers):
        if time.monotonic() - asked >= ASK_SECONDS:
            asked = time.monotonic()
            for each in workers:
                each.ask_to_end()
        time.sleep(POLL_SECONDS / 10)
