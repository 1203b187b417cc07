"""Idempotent calls of `def` functions, and the leases of all that run in this process.

With a session the function's effect, the key and the result are one commit, so that the effect
happens once. Without, the key is committed first and the result afterwards: an effect elsewhere
happens at least once, and after a crash in between the function is told that it is in doubt.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.held_keys import holding
from reliable_mq.idempotency.keyed_function import KeyedFunction, RequestedCall
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall, SqlCalls
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
        self._renewer: threading.Thread | None = None
        self._idle = threading.Event()

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
            if self._renewer is None:
                self._idle = threading.Event()
                self._renewer = threading.Thread(
                    target=self._renew_while_calls_run,
                    args=(self._idle,),
                    name="reliable-mq-calls",
                    daemon=True,
                )
                self._renewer.start()

    def ended(self, call: KeyedCall) -> None:
        """Renew the lease of a call no more."""
        with self._lock:
            self._running.pop(call.token, None)
            if not self._running and self._renewer is not None:
                self._idle.set()
                self._renewer = None

    def _renew_while_calls_run(self, idle: threading.Event) -> None:
        while not idle.wait(self.lease / 3):
            with self._lock:
                running = list(self._running.values())
            try:
                until = self.database.clock.measured_now() + self.lease
                with self.database.engine.begin() as connection:
                    self.table.renew(connection, running, until)
            except Exception as error:  # noqa: BLE001 - told by the teller
                self._faults.tell(error)


class ThreadCalls:
    """Calls one `def` function."""

    def __init__(self, book: CallBook, function: KeyedFunction) -> None:
        self._book = book
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, or return what it returned when it ran with this key."""
        asked = self._function.asked(args, kwargs, self._book.token())
        with holding(self._book, asked.call):
            return self._call(asked)

    def _call(self, asked: RequestedCall) -> Any:
        given, database = asked.session, self._book.database
        if given is not None:
            with given.begin_nested():  # what its owner commits without it, if it raises
                return self._call_inside(given, asked)
        # Not beside a caller's transaction: another connection would wait for what it has locked.
        database.clock.measured_now()
        if self._function.session is None:
            return self._call_and_note(asked)
        with database.handler_session() as session, session.begin():
            return self._call_inside(session, asked)

    def _call_inside(self, session: Session, asked: RequestedCall) -> Any:
        """Run the function in a transaction that commits the key, the effect and the result."""
        function, call = self._function, asked.call
        found = self._book.begin(session.connection(), call)
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        with held(session):
            result = function.run(asked, session, found)
            if isinstance(session, HandlerSession) and session.is_in_doubt:
                session.look_back(undo=False)
        stored = function.encode(result)
        session.flush()
        if not self._book.finish(session.connection(), call, stored):
            raise UsageError(f"{function.name}: it ended the transaction of its key")
        return function.decode(stored)

    def _call_and_note(self, asked: RequestedCall) -> Any:
        """Commit the key, run the function, commit its result."""
        book, function, call = self._book, self._function, asked.call
        engine = book.database.engine
        with engine.begin() as connection:
            found = book.begin(connection, call)
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        book.started(call)
        try:
            try:
                result = function.run(asked, None, found)
            except Exception:
                with engine.begin() as connection:
                    book.release(connection, call)
                raise
            stored, fault = stored_or_fault(function, result)
            with engine.begin() as connection:
                is_ours = book.finish(connection, call, stored)
        finally:
            book.ended(call)
        if not is_ours:
            tell_overtaken(call)
        if fault is not None:
            raise fault
        return function.decode(stored)


def stored_or_fault(function: KeyedFunction, result: Any) -> tuple[bytes | None, UsageError | None]:
    """Return a result to be stored, or why it cannot be: its effect has happened all the same."""
    try:
        return function.encode(result), None
    except UsageError as error:
        return None, error


def tell_overtaken(call: KeyedCall) -> None:
    """Log that a call lost its claim while it ran: another one may have had the same effect."""
    log.warning(
        "%s: the call with key %r lost its claim, so it may have run twice", call.scope, call.shown
    )


def held(session: Session) -> AbstractContextManager[None]:
    """Keep a session's transaction open while a function has it, where the session can."""
    return session.held() if isinstance(session, HandlerSession) else nullcontext()
