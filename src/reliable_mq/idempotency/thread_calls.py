"""The idempotent calls of one process: their names, their table, the leases of those that run."""

import itertools
import logging
import os
import threading
from collections.abc import Callable

from sqlalchemy import Connection

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.idempotency.sql_calls import CallFound, KeyedCall, SqlCalls
from reliable_mq.runtime.forks import call_in_child

log = logging.getLogger(__name__)


class CallBook:
    """The calls of one application in one process: its names, its table, its running leases.

    Invariant: a call is in `running` exactly while its function runs under a committed lease.

    Args:
        database: gives the database when it is first needed.
        lease: seconds for which the claim of a process that died holds.
    """

    def __init__(self, database: Callable[[], Database], lease: float) -> None:
        self._database = database
        self.lease = lease
        self._faults = FaultLog(log, "idempotent calls: their leases are not renewed")
        self._begin()
        call_in_child(self._begin)

    def _begin(self) -> None:
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[str, KeyedCall] = {}
        self._idle: threading.Event | None = None  # of the thread that renews, while one runs

    @property
    def database(self) -> Database:
        """Where the calls are written down."""
        return self._database()

    @property
    def table(self) -> SqlCalls:
        """The statements."""
        return SqlCalls(self.database.calls, self.database.watched_time)

    def token(self) -> str:
        """Return the name of one more call."""
        return f"{self._name}-{next(self._numbers)}"

    def begin(self, connection: Connection, call: KeyedCall) -> CallFound:
        """Make a call ours in the caller's transaction, or say why it is not."""
        clock = self.database.clock
        return self.table.begin(
            connection, call, clock.now_on(connection), self.lease, clock.watched
        )

    def finish(self, connection: Connection, call: KeyedCall, result: bytes | None) -> bool:
        """Store a result in the caller's transaction; False: the claim is no longer ours."""
        return self.table.finish(connection, call, result, self.database.clock.now())

    def release(self, connection: Connection, call: KeyedCall) -> None:
        """Let a key go in the caller's transaction."""
        self.table.release(connection, call)

    def started(self, call: KeyedCall) -> None:
        """Renew the lease of a call from now on."""
        with self._lock:
            self._running[call.token] = call
            if self._idle is None:
                self._idle = threading.Event()
                threading.Thread(
                    target=self._renew_while_calls_run,
                    args=(self._idle,),
                    name="reliable-mq-calls",
                    daemon=True,
                ).start()

    def end_renewal(self, call: KeyedCall) -> None:
        """Renew the lease of a call no more."""
        with self._lock:
            self._running.pop(call.token, None)
            if not self._running and self._idle is not None:
                self._idle.set()
                self._idle = None

    def _renew_while_calls_run(self, idle: threading.Event) -> None:
        while not idle.wait(self.lease / 3):
            with self._lock:
                running = list(self._running.values())
            try:
                until = self.database.clock.measured_now() + self.lease
                with self.database.engine.begin() as connection:
                    self.table.renew(connection, running, until)
            except Exception as error:  # noqa: BLE001 - told by the teller
                self._faults.log_fault(error)
