"""Listens for commits of other processes: PostgreSQL's LISTEN, in its own thread and on its own
connection. Other databases announce nothing; there, relays search by themselves.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from reliable_mq.database.sql_faults import FaultLog, fault_line

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""How often the thread checks whether it must stop."""
_AGAIN_SECONDS = 1.0


class CommitListener:
    """Calls `callback` after commits that were announced on a channel.

    Invariant: `is_listening` only while an announced commit is received.

    Args:
        engine: the database; on other databases than PostgreSQL it never calls `callback`.
        channel: the channel's name.
        callback: called in the listener's thread. Also called once when listening begins, because
            earlier commits are not received.
    """

    def __init__(self, engine: Engine, channel: str, callback: Callable[[], None]) -> None:
        self._engine = engine
        self._channel = channel
        self._callback = callback
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reliable-mq-listen", daemon=True)
        self._faults = FaultLog(log, "relay: commits are not announced, it searches at intervals")
        self.is_listening = False

    def start(self) -> None:
        """Start to listen, if the database announces commits."""
        if self._engine.dialect.name == "postgresql":
            self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * _LOOK_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                connection = self._connect()
            except Exception as error:  # noqa: BLE001 - the fault log reports it
                self._faults.log_fault(error)
                self._stopped.wait(_AGAIN_SECONDS)
                continue
            try:
                with contextlib.closing(connection):
                    self._listen(connection)
            except Exception as error:  # noqa: BLE001 - whatever the error is, it connects again
                self._faults.log_line("cut", f"its connection was lost: {fault_line(error)}")
                self._stopped.wait(_AGAIN_SECONDS)

    def _connect(self) -> Any:
        """Return a driver's connection that is detached from the pool."""
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.autocommit = True
        return connection

    def _listen(self, connection: Any) -> None:
        quoted = self._engine.dialect.identifier_preparer.quote(self._channel)
        connection.execute(f"LISTEN {quoted}")
        self.is_listening = True
        if self._faults.is_failing:
            self._faults.note_success()
        try:
            self._callback()
            while not self._stopped.is_set():
                heard = list(connection.notifies(timeout=_LOOK_SECONDS, stop_after=1))
                if heard:
                    self._callback()
        finally:
            self.is_listening = False
