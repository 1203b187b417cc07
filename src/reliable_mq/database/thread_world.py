"""A thread as the world of a flow: whatever the flow awaits is done at once.

A flow over transactions is a coroutine that awaits its world and nothing else. So it is written
once: `ThreadWorld` serves it for `def` functions, `AsyncioWorld` for `async def` functions.
"""

import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import InvariantBroken

T = TypeVar("T")


class ThreadWorld:
    """What a flow may await, in the calling thread.

    Args:
        database: where sessions and connections lead.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def session(self) -> Any:
        """Return what is to be entered with `async with` for a new session of a handler."""
        return _Scope(self._database.handler_session())

    def within(self, scope: Any) -> Any:
        """Return what is to be entered with `async with` instead of `scope`, a transaction."""
        return _Scope(scope)

    def inner(self, session: Any) -> Any:
        """Return the synchronous session of `session`."""
        return session

    async def on(self, session: Any, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function(session, *arguments)`; it gets the synchronous session."""
        return function(session, *arguments)

    async def in_transaction(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function(connection, *arguments)` in a transaction of its own, and commit it."""
        with self._database.engine.begin() as connection:
            return function(connection, *arguments)

    async def aside(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function(*arguments)`, which takes a while, where no event loop waits for it."""
        return function(*arguments)

    async def call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a function of the application returns; in an event loop await that."""
        try:
            return function(*given, **named)
        except StopIteration as error:
            raise StopRaised(error) from error

    def is_ended_by(self, _error: BaseException) -> bool:
        """Say whether what `call` raised ends the flow itself, rather than that function."""
        return False

    async def pause(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(seconds)


class _Scope(NamedTuple):
    """A context manager that can be entered with `async with`."""

    scope: Any

    async def __aenter__(self) -> Any:
        return self.scope.__enter__()

    async def __aexit__(self, *raised: Any) -> Any:
        return self.scope.__exit__(*raised)


class StopRaised(Exception):
    """Carries a `StopIteration` through a flow: no coroutine lets one through (PEP 479)."""

    def __init__(self, stopped: StopIteration) -> None:
        super().__init__(repr(stopped))
        self.stopped = stopped


def run(flow: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Return what `flow(*arguments)` returns, a flow in a `ThreadWorld`.

    Raises:
        Exception: what it raises, also a `StopIteration` of the application's function.
        InvariantBroken: when it awaits something else than its world.
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
