"""`reliable-mq run`: runs the consumers of an application, in one process or several."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from reliable_mq.app.thread_signals import WorkerDied, stop_on_signal
from reliable_mq.cli import log_options, metrics
from reliable_mq.cli.database_options import loaded
from reliable_mq.cli.shared_options import Application, Named, needed_application
from reliable_mq.extras import extra_of
from reliable_mq.runtime.heartbeat import Heartbeat, without_probes
from reliable_mq.settings import EMBEDDED
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
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
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Run the consumers of an application until SIGTERM or SIGINT.

    With several processes, one port serves the sums of their metrics.
    """
    application = needed_application(argument, app)
    mq = loaded(application)
    log_options.write_log(log_format or mq.settings.log_format, log_level or mq.settings.log_level)
    if processes == 1:
        if is_measured:
            mq.meter().measure_for_parent()
        elif metrics_port:
            mq.register_metrics()
            metrics.serve_metrics(metrics_host, metrics_port)
        mq.run()
        return
    if mq.settings.broker.startswith(EMBEDDED):
        raise typer.BadParameter(
            "several processes cannot embed one broker: run reliable-mq broker"
        )
    words = [sys.executable, "-m", "reliable_mq.cli.main", "run", application]
    words += ["--log-format", log_format] if log_format else []
    words += ["--log-level", log_level] if log_level else []
    if not metrics_port:
        _supervise([words] * processes, os.environ)
        return
    with extra_of("prometheus_client"):
        from reliable_mq.cli.worker_metrics import WorkerMetrics  # noqa: PLC0415 - an extra
    measured = WorkerMetrics()
    try:
        mq.meter(measured.registry).register_databases()
        metrics.serve_metrics(metrics_host, metrics_port, measured.registry)
        words = [*words, "--measured", "--metrics-port", "0"]
        _supervise([words] * processes, measured.environment, measured.worker_ended)
    finally:
        measured.close()


class _Worker:
    """Runs one worker process, and starts it again when it ends.

    Invariant: between two starts are at least `RESTART_SECONDS`, and `FAILING_RESTART_SECONDS`
    while it is failing.
    """

    def __init__(
        self, words: list[str], environment: Mapping[str, str], on_end: Callable[[int], None]
    ) -> None:
        self._words = words
        self._environment = environment
        self._on_end = on_end
        self._short_lives = 0
        self._has_ended = False
        self.start()

    @property
    def is_failing(self) -> bool:
        return self._short_lives >= SHORT_LIVES_MAX

    def start(self) -> None:
        environment = without_probes(self._environment)
        self.child = subprocess.Popen(self._words, env=environment)  # noqa: S603 - our own command
        self._born = time.monotonic()
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
            self.start()

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


def _supervise(
    commands: list[list[str]],
    environment: Mapping[str, str],
    on_end: Callable[[int], None] = lambda _number: None,
) -> None:
    """Keep worker processes running; forward a request to stop.

    Args:
        commands: the command lines of the workers.
        environment: the environment of the workers.
        on_end: called with the number of each process that has ended.

    Raises:
        WorkerDied: every worker fails repeatedly at its start.
    """
    heart = Heartbeat()
    with stop_on_signal() as stopped:
        workers = [_Worker(words, environment, on_end) for words in commands]
        is_well = True
        while is_well and not stopped.wait(POLL_SECONDS):
            heart.beat()
            for each in workers:
                each.restart_if_due()
            is_well = not all(each.is_failing for each in workers)
    heart.end()
    for each in workers:
        if each.child.poll() is None:
            each.child.send_signal(signal.SIGTERM)
    for each in workers:
        each.child.wait()
    if not is_well:
        raise WorkerDied(
            f"each worker failed {SHORT_LIVES_MAX} times in a row within "
            f"{SHORT_LIFE_SECONDS:g} s of its start; its last output says why"
        )
