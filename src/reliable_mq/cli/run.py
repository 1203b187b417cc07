"""`reliable-mq run`: the consumers of an application, in one process or several."""

import logging
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
from reliable_mq.settings import EMBEDDED

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
RESTART_SECONDS = 2.0
SHORT_LIFE_SECONDS = 10.0
SHORT_LIVES_MAX = 5
"""A worker that fails so often soon after its start, in a row, ends the command: it never ran."""


def command(
    application: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="A ReliableMQ.")],
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
) -> None:
    """Run the consumers of an application until SIGTERM or SIGINT.

    Of several processes the first one serves its metrics at the port, the next one at the next.
    """
    mq = loaded(application)
    log_plainly()
    if processes == 1:
        metrics.serve_metrics(metrics_host, metrics_port)
        mq.run()
        return
    if mq.settings.broker.startswith(EMBEDDED):
        raise typer.BadParameter(
            "several processes cannot embed one broker; run reliable-mq broker"
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
    """A place of a worker process, which is started again when it ends.

    Invariant: it is started again `RESTART_SECONDS` after its last start at the earliest.
    """

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._short_lives = 0
        self.start()

    def start(self) -> None:
        self.child = subprocess.Popen(self._words)
        self._born = time.monotonic()

    def look(self) -> bool:
        """Start it again if it has ended; False: it has failed at its start again and again."""
        code, lived = self.child.poll(), time.monotonic() - self._born
        # One that dies at once is not started again at once.
        if code is None or lived < RESTART_SECONDS:
            return True
        log.warning("worker %d ended with code %d", self.child.pid, code)
        # A signal is no failure of the application's.
        is_short = code > 0 and lived < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives >= SHORT_LIVES_MAX:
            return False
        self.start()
        return True


def _supervise(commands: list[list[str]]) -> None:
    """Keep worker processes running; pass a request to stop on to them.

    Raises:
        WorkerDied: when one fails at its start again and again.
    """
    with stop_on_signal() as stopped:
        workers = [_Worker(words) for words in commands]
        is_well = True
        while is_well and not stopped.wait(POLL_SECONDS):
            looks = [each.look() for each in workers]  # at all of them
            is_well = all(looks)
    for each in workers:
        if each.child.poll() is None:
            each.child.send_signal(signal.SIGTERM)
    for each in workers:
        each.child.wait()
    if not is_well:
        raise WorkerDied(
            f"a worker failed {SHORT_LIVES_MAX} times in a row within {SHORT_LIFE_SECONDS:g} s of"
            " its start; what it wrote last says why"
        )
