"""A process that has loaded everything and done nothing: each life is a fork of it.

Reads jobs from its standard input, one JSON object a line, and writes how each ended to its
standard output. Starting Python and importing the application would take a second for each life;
a fork takes some milliseconds. It has no threads, or a fork could inherit a lock that nobody holds.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import aiomysql  # noqa: F401 - loaded here, so that no life has to
import aiosqlite  # noqa: F401
import msgspec
import psycopg  # noqa: F401
import pymysql  # noqa: F401
import sqlalchemy.dialects.mysql  # noqa: F401 - for its import alone
import sqlalchemy.dialects.postgresql  # noqa: F401 - for its import alone
import sqlalchemy.dialects.sqlite  # noqa: F401
from tests.crash_matrix.flaws import plant
from tests.crash_matrix.preparing import PREPARING
from tests.crash_matrix.roles import CLOSING_SECONDS_MAX, DRAINS, DYING, Life
from tests.crash_matrix.worlds import World

from reliable_mq.cli import dlq, stub  # noqa: F401
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.settings import ClientSettings
from reliable_mq.testing import crash_watch  # noqa: F401
from reliable_mq.testing.crash_points import CrashPoints, install

TELLING_SECONDS_MAX = 5.0
"""So long what hangs may take to say where."""
PATIENT_SECONDS = 15.0
"""So long an answer of a server is waited for, at least."""
LIVES = {**DYING, **PREPARING, **DRAINS}


class Job(msgspec.Struct, frozen=True):
    """A life to be lived: who, where, and at which point it ends.

    `steps`: the file that its steps are written to; empty: it has no crash points at all.
    """

    number: int
    life: str
    world: World
    at: str = ""
    steps: str = ""


class Ended(msgspec.Struct, frozen=True):
    """How a life ended: an exit code, or the negative number of a signal."""

    number: int
    code: int


def live(job: Job) -> int:
    """Live a life to its end; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    gc.disable()  # a life is short
    # What hangs says where. It looks at threads that run, so it may kill what is alive: that has
    # waited in vain then, and did not close in time.
    faulthandler.dump_traceback_later(Life.seconds_left(CLOSING_SECONDS_MAX))
    _hurry()
    plant(job.world.flaw)
    if job.steps:
        install(CrashPoints(job.at, log=job.steps))
    try:
        LIVES[job.life](job.world)
    except BaseException:  # noqa: BLE001 - the log is all that is left of this process
        traceback.print_exc()
        return 1
    return 0


def _hurry() -> None:
    """Let the client wait for less than it does in production, so that a run is short."""
    begin = AsyncClient.__init__

    def begun(
        self: AsyncClient,
        name_servers: str,
        *,
        settings: ClientSettings = DEFAULT_SETTINGS,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        quick = msgspec.structs.replace(
            settings,
            new_topic_queues=2,
            rebalance_retry_seconds=0.1,
            offset_commit_seconds=0.1,
            settle_retry_seconds=0.2,
            hold_seconds=0.05,
            # A busy machine is no lost broker.
            request_timeout_seconds=max(settings.request_timeout_seconds, PATIENT_SECONDS),
            connect_timeout_seconds=max(settings.connect_timeout_seconds, PATIENT_SECONDS),
        )
        begin(self, name_servers, settings=quick, middleware=middleware, sign=sign)

    AsyncClient.__init__ = begun  # type: ignore[method-assign]


def _fork(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    Life.begin()
    alarm_seconds = Life.seconds_left(CLOSING_SECONDS_MAX + TELLING_SECONDS_MAX)
    signal.setitimer(signal.ITIMER_REAL, alarm_seconds)  # whatever hangs ends
    log = Path(job.world.directory, f"{job.life}.log").open("a")  # noqa: SIM115 - to the end
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    code = 1
    try:
        code = live(job)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve jobs until the input ends."""
    gc.collect()
    gc.freeze()  # what is here stays, and need not be looked at (and so copied) in each life
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    kept = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _collect(running)
        if 0 in ready:
            data = os.read(0, 65_536)
            if not data:
                return
            *lines, kept = (kept + data).split(b"\n")
            for line in lines:
                job = msgspec.json.decode(line, type=Job)
                running[_fork(job)] = job.number


def _collect(running: dict[int, int]) -> None:
    """Tell of every life that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            line = msgspec.json.encode(Ended(running.pop(ended[0]), code)) + b"\n"
            os.write(1, line)


if __name__ == "__main__":
    main()
