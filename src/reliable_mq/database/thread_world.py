"""The world of a flow in a thread: each step that the flow awaits is done at once.

A flow over transactions is a coroutine that only awaits the methods of its world. So it is written
once. `ThreadWorld` runs its steps for `def` functions, `AsyncioWorld` for `async def` functions.
"""

import time
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_handler_session import status_of, take_ahead
from reliable_mq.errors import InvariantBroken

T = TypeVar("T")


class ThreadWorld:
    """The steps of a flow, in the calling thread.

    Args:
        database: the database of sessions and connections.
    """

    #: whether a step may keep this thread waiting; an event loop must not
    may_block = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def session(self) -> Any:
        """Return a new handler's session; enter it with `async with`."""
        return _Scope(self._database.handler_session())

    def series(self) -> "ConnectionOfSeries | None":
        """Return the connection for transactions that follow each other; None: each has its own."""
        engine = self._database.series_engine
        return None if engine is None else ConnectionOfSeries(engine)

    def async_scope(self, scope: Any) -> Any:
        """Return the transaction `scope` in a form for `async with`."""
        return _Scope(scope)

    def sync_session(self, session: Any) -> Any:
        """Return the synchronous session of `session`."""
        return session

    async def in_session(self, session: Any, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function(session, *arguments)` with the synchronous session."""
        return function(session, *arguments)

    async def in_transaction(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function(connection, *arguments)` in its own transaction, and commit."""
        with self._database.engine.begin() as connection:
            return function(connection, *arguments)

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a slow `function(*arguments)` without blocking an event loop."""
        return function(*arguments)

    async def call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function of the application; on an event loop, await its result."""
        try:
            return function(*given, **named)
        except StopIteration as error:
            raise StopRaised(error) from error

    def is_ended_by(self, _error: BaseException) -> bool:
        """Return whether an error of `call` ends the flow itself, not only the function."""
        return False

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`."""
        time.sleep(seconds)


class FirstRow(Enum):
    """What is known of the CONSUMED row of a message when its transaction begins."""

    UNSENT = "unsent"  # its insert comes now
    INSERTED = "inserted"  # behind the last COMMIT
    REFUSED = "refused"  # the insert was sent there, and found another row
    IN_DOUBT = "in doubt"  # inserted, and somebody has ended that transaction below SQLAlchemy


class ConnectionOfSeries:
    """One connection for the transactions of a series, which a thread runs one after another.

    It saves the way to the pool and back. Each transaction still has its own session. On
    PostgreSQL the commit of one also begins the next, see `commit_with`.

    Invariant: between two transactions it has no connection, or one that is as the pool gave it,
    in a transaction that has at most the row of the next message.

    Args:
        engine: the database's.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._options: Mapping[str, Any] = {}
        self._had_events = False
        self._first_row = FirstRow.UNSENT

    def lend(self, session: Session) -> FirstRow:
        """Let the transaction of a session run on the connection of the series."""
        if self._connection is not None and not _is_free(self._connection):
            self.release()
        if self._connection is None:
            self._connection = self._engine.connect()
            self._options = self._connection.get_execution_options()
            self._had_events = _has_events(self._connection)
        session.connection(bind_arguments={"bind": self._connection})
        first, self._first_row = self._first_row, FirstRow.UNSENT
        return self._checked(first) if first is FirstRow.INSERTED else first

    def _checked(self, first: FirstRow) -> FirstRow:
        """Return what is left of a row that was inserted behind the last COMMIT."""
        there = self._connection
        if there is None or not take_ahead(there.connection.driver_connection):
            return FirstRow.UNSENT
        is_open = status_of(there)
        return first if is_open is None or is_open() else FirstRow.IN_DOUBT

    def keep(self, *, is_needed: bool, first: FirstRow = FirstRow.UNSENT) -> None:
        """Keep the connection after a commit if it `is_needed`, and nobody has changed it.

        `first`: what has become of the next message's row, if its insert was sent with the commit.
        """
        there, self._first_row = self._connection, first
        if there is None:
            return
        if not (
            is_needed
            and _is_free(there)
            and there.get_execution_options() == self._options
            and _has_events(there) == self._had_events
        ):
            self.release()

    def release(self) -> None:
        """Give the connection back. The next transaction of the series gets another one."""
        there, self._connection, self._first_row = self._connection, None, FirstRow.UNSENT
        if there is not None:
            there.close()


def _is_free(connection: Connection) -> bool:
    """Return whether a transaction can begin on a connection.

    A session would only join one that somebody else has begun: its commit would do nothing.
    """
    return not (connection.closed or connection.invalidated or connection.in_transaction())


def _has_events(connection: Connection) -> bool:
    """Return whether a connection has listeners of its own; there is no public question for it."""
    return bool(getattr(connection, "_has_events", False))


class _Scope(NamedTuple):
    """A context manager in a form for `async with`."""

    scope: Any

    async def __aenter__(self) -> Any:
        return self.scope.__enter__()

    async def __aexit__(self, *raised: Any) -> Any:
        return self.scope.__exit__(*raised)


class StopRaised(Exception):
    """Carries a `StopIteration` through a flow: coroutines convert a bare one (PEP 479)."""

    def __init__(self, stopped: StopIteration) -> None:
        super().__init__(repr(stopped))
        self.stopped = stopped


def run(flow: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Run `flow(*arguments)`, a flow in a `ThreadWorld`; return its result.

    Raises:
        Exception: any error of the flow, also a `StopIteration` of the application's function.
        InvariantBroken: when the flow awaits something else than its world.
    """
    coroutine = flow(*arguments)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except StopRaised as carried:
        raised: Exception = carried.stopped
    else:
        coroutine.close()
        raised = InvariantBroken(f"{flow.__qualname__} waits in a thread for an event loop")
    raise raised
