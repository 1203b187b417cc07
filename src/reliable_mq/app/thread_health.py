"""Whether a process is alive, and whether it is ready: for the probes of a platform.

A process is *alive* while its event loop runs. Start it again if it is not.

A process is *ready* while each of its databases answers. The broker is reported and does not count:
while it is away, transactions commit, and their messages wait in the outbox.
"""

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import select

from reliable_mq.app.application import ReliableMQ
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import fault_line

__all__ = ["Health", "liveness", "readiness"]

ANSWER_SECONDS = 2.0
"""A database that does not answer for this time counts as away. All are asked at once."""

_asked: WeakKeyDictionary[Database, "Future[str]"] = WeakKeyDictionary()
_lock = threading.Lock()


class Health(NamedTuple):
    """The answer to a probe."""

    is_well: bool
    checks: dict[str, str]
    """what was checked -> "ok", or what is wrong"""

    @property
    def status(self) -> int:
        """The status of HTTP: 200, or 503."""
        return 200 if self.is_well else 503

    @property
    def body(self) -> dict[str, Any]:
        """What to answer as JSON."""
        return {"status": "ok" if self.is_well else "failed", "checks": self.checks}


def liveness(mq: ReliableMQ) -> Health:
    """Return whether the event loop of this process runs; it waits for nothing."""
    if mq.is_alive:
        return Health(True, {"event loop": "ok"})
    return Health(False, {"event loop": "it has ended: start this process again"})


def readiness(mq: ReliableMQ) -> Health:
    """Return whether the databases of this process answer; it waits 2 seconds at most.

    Call it in a thread, not on an event loop.
    """
    answers = {mq.shown_name(name): _ask(each) for name, each in mq.databases.items()}
    checks = {}
    until = monotonic() + ANSWER_SECONDS
    for name, answer in answers.items():
        try:
            checks[f"database {name}"] = answer.result(max(0.0, until - monotonic())) or "ok"
        except NotInTime:
            checks[f"database {name}"] = f"no answer within {ANSWER_SECONDS:g} s"
    is_well = all(each == "ok" for each in checks.values()) and mq.is_alive
    return Health(is_well, checks)


def _ask(database: Database) -> "Future[str]":
    """Ask a database in a thread of its own; all that ask meanwhile get the same answer."""
    with _lock:
        running = _asked.get(database)
        if running is not None and not running.done():
            return running
        answer: Future[str] = Future()
        _asked[database] = answer
    thread = threading.Thread(
        target=_answer, args=(database, answer), name="reliable-mq-health", daemon=True
    )
    thread.start()
    return answer


def _answer(database: Database, answer: "Future[str]") -> None:
    try:
        database.check_file()
        with database.reading_engine.connect() as connection:
            connection.execute(select(1))
    except Exception as error:  # noqa: BLE001 - the probe says it
        answer.set_result(fault_line(error) or type(error).__name__)
    else:
        answer.set_result("")
