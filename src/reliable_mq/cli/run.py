"""`reliable-mq run`: runs the consumers of an application, in one process or several."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Annotated

import typer

from reliable_mq.app.thread_signals import WorkerDied, stop_on_signal
from reliable_mq.cli import metrics
from reliable_mq.cli.database_options import loaded
from reliable_mq.cli.saying import log_plainly
from reliable_mq.limits import PORT_MAX
from reliable_mq.runtime.heartbeat import Heartbeat, without_probes
from reliable_mq.settings import EMBEDDED

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
    application: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT", help="The application: a ReliableMQ object, such as shop:mq."
        ),
    ],
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
) -> None:
    """Run the consumers of an application until SIGTERM or SIGINT.

    With several processes, the first one serves its metrics at the port, the second at the next.
    """
    mq = loaded(application)
    log_plainly()
    if processes == 1:
        metrics.serve_metrics(metrics_host, metrics_port)
        mq.run()
        return
    if metrics_port and metrics_port + processes - 1 > PORT_MAX:
        raise typer.BadParameter(
            f"--metrics-port {metrics_port}: {processes} processes need as many ports, and the "
            f"last port is {PORT_MAX}"
        )
    if mq.settings.broker.startswith(EMBEDDED):
        raise typer.BadParameter(
            "several processes cannot embed one broker: run reliable-mq broker"
        )
    words = [sys.executable, "-m", "reliable_mq.cli.main", "run", application]
    served = ["--metrics-host", metrics_host, "--metrics-port"]
    _supervise(
        [
            [*words, *([*served, str(metrics_port + place)] if metrics_port else ())]
            for place in range(processes)
        ]
    )


class _Worker:
    """Runs one worker process, and starts it again when it ends.

    Invariant: between two starts are at least `RESTART_SECONDS`, and `FAILING_RESTART_SECONDS`
    while it is failing.
    """

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._short_lives = 0
        self._has_ended = False
        self.start()

    @property
    def is_failing(self) -> bool:
        return self._short_lives >= SHORT_LIVES_MAX

    def start(self) -> None:
        self.child = subprocess.Popen(self._words, env=without_probes(os.environ))
        self._born = time.monotonic()
        self._has_ended = False

    def restart_if_due(self) -> None:
        """Start it again if it has ended and its wait is over."""
        code, lived = self.child.poll(), time.monotonic() - self._born
        if code is not None and not self._has_ended:
            self._has_ended = True
            self._count(code, lived)
        elif code is None and lived >= SHORT_LIFE_SECONDS:
            self._short_lives = 0
        # A worker that ends at once is not started again at once.
        wait = FAILING_RESTART_SECONDS if self.is_failing else RESTART_SECONDS
        if self._has_ended and lived >= wait:
            self.start()

    def _count(self, code: int, lived: float) -> None:
        log.warning("worker %d ended with code %d", self.child.pid, code)
        # A death by a signal is not a failure of the application.
        is_short = code > 0 and lived < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives == SHORT_LIVES_MAX:
            log.error(
                "this worker failed %d times in a row within %g s of its start; it will be started "
                "again every %g s: %s",
                SHORT_LIVES_MAX,
                SHORT_LIFE_SECONDS,
                FAILING_RESTART_SECONDS,
                shlex.join(self._words),
            )


def _supervise(commands: list[list[str]]) -> None:
    """Keep worker processes running; forward a request to stop.

    Raises:
        WorkerDied: every worker fails repeatedly at its start.
    """
    heart = Heartbeat()
    with stop_on_signal() as stopped:
        workers = [_Worker(words) for words in commands]
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
