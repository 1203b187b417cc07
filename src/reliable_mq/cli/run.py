"""`reliable-mq run`: the consumers of an application, in one process or several."""

import logging
import signal
import subprocess
import sys
import time
from typing import Annotated

import typer

from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.cli.database_options import loaded
from reliable_mq.settings import EMBEDDED

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
RESTART_SECONDS = 2.0


def command(
    application: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="A ReliableMQ.")],
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
) -> None:
    """Run the consumers of an application until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    mq = loaded(application)
    if processes == 1:
        mq.run()
        return
    if mq.settings.broker.startswith(EMBEDDED):
        raise typer.BadParameter(
            "several processes cannot embed one broker; run reliable-mq broker"
        )
    _supervise([sys.executable, "-m", "reliable_mq.cli.main", "run", application], processes)


def _supervise(words: list[str], count: int) -> None:
    """Keep `count` worker processes running; pass a request to stop on to them."""
    with stop_on_signal() as stopped:
        children = [subprocess.Popen(words) for _ in range(count)]
        born = [time.monotonic()] * count
        while not stopped.wait(POLL_SECONDS):
            for place, child in enumerate(children):
                # One that dies at once is not started again at once.
                if child.poll() is None or time.monotonic() < born[place] + RESTART_SECONDS:
                    continue
                log.warning("worker %d ended with code %d", child.pid, child.returncode)
                children[place] = subprocess.Popen(words)
                born[place] = time.monotonic()
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait()
