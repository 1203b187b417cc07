"""The flow of an idempotent call: claim the key, run the function, store its result.

With a session or a transaction of the caller, the function's effect, the key and the result are one
commit. So the effect happens once. Otherwise the key is committed first and the result afterwards.
Then an effect elsewhere happens at least once. After a crash in between, the next call is marked in
doubt. Such a call must not use a transaction that ends later, see `calls_apart`.
"""

import logging
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.database.thread_world import ThreadWorld
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.callers_sessions import idle_sessions
from reliable_mq.idempotency.held_keys import holding
from reliable_mq.idempotency.keyed_function import KeyedFunction, RequestedCall
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.outbox.calls_apart import apart, outlives
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


class CallFlow:
    """Calls one function.

    Args:
        book: the calls of this process.
        function: the function.
    """

    def __init__(self, book: CallBook, function: KeyedFunction) -> None:
        self._book = book
        self._function = function

    async def call(
        self, make_world: type[ThreadWorld], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the function, or return its stored result for this key."""
        asked = self._function.asked(args, kwargs, self._book.token())
        with holding(self._book, asked.call):
            return await self._call(make_world(self._book.database), asked)

    async def _call(self, world: ThreadWorld, asked: RequestedCall) -> Any:
        given = asked.session
        if given is not None:
            async with world.async_scope(given.begin_nested()):  # the caller may commit without it
                return await self._call_inside(world, given, asked)
        has_session = self._function.session is not None
        around = None
        if world.may_block or not has_session:
            around = await self._transaction_around(world)
        if around is None:
            # Not inside a caller's transaction: another connection would wait for its locks.
            await world.run_blocking(self._book.database.clock.measured_now)
        elif not has_session:
            async with (
                world.async_scope(around) as connection,
                world.async_scope(connection.begin_nested()),
            ):
                return await self._call_inside(world, connection, asked)
        if not has_session:
            return await self._call_and_note(world, asked)
        async with world.session() as session, world.async_scope(session.begin()):
            return await self._call_inside(world, session, asked)

    async def _transaction_around(self, world: ThreadWorld) -> Any:
        """Return the transaction of the framework that this call is in; None: it is in none.

        Raises:
            UsageError: there is one, and an `async def` cannot be in it.
        """
        database = self._book.database
        if world.may_block:
            return database.transaction_around()
        if await database.is_task_in_transaction():
            raise outlives(self._function.name)
        return None

    async def _call_inside(self, world: ThreadWorld, session: Any, asked: RequestedCall) -> Any:
        """Run the function in the transaction of the key, the effect and the result."""
        book, function, call = self._book, self._function, asked.call

        def begin(inner: Session | Connection) -> CallFound:
            return book.begin(_connection_of(inner), call)

        def finish(inner: Session | Connection, stored: bytes) -> bool:
            if isinstance(inner, Session):
                inner.flush()
            return book.finish(_connection_of(inner), call, stored)

        found = await world.in_session(session, begin)
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        inner = world.sync_session(session)
        is_held = isinstance(inner, HandlerSession)  # its transaction stays open meanwhile
        with inner.held() if is_held else nullcontext():
            result = await world.call(function.run, asked, session, found)
            if is_held and inner.is_in_doubt:
                await world.in_session(session, lambda _: inner.check_transaction(undo=False))
        stored = function.encode(result)
        if not await world.in_session(session, finish, stored):
            raise UsageError(
                f"{function.name}: it committed or rolled back its session: the transaction of "
                "its key must not end inside the function"
            )
        return function.decode(stored)

    async def _call_and_note(self, world: ThreadWorld, asked: RequestedCall) -> Any:
        """Commit the key, run the function, commit its result."""
        book, function, call = self._book, self._function, asked.call
        found = await world.in_transaction(book.begin, call)
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        book.started(call)
        try:
            try:
                with apart(function.name, idle_sessions(asked.arguments)):
                    result = await world.call(function.run, asked, None, found)
            except Exception:
                await world.in_transaction(book.release, call)
                raise
            stored, fault = _stored_or_fault(function, result)
            is_ours = await world.in_transaction(book.finish, call, stored)
        finally:
            book.end_renewal(call)
        if not is_ours:
            _log_overtaken(call)
        if fault is not None:
            raise fault
        return function.decode(stored)


def _connection_of(inner: Session | Connection) -> Connection:
    return inner.connection() if isinstance(inner, Session) else inner


def _stored_or_fault(
    function: KeyedFunction, result: Any
) -> tuple[bytes | None, UsageError | None]:
    """Return the result to store, or the error: the effect has happened in both cases."""
    try:
        return function.encode(result), None
    except UsageError as error:
        return None, error


def _log_overtaken(call: KeyedCall) -> None:
    """Log that a call lost its claim while it ran: another one may have had the same effect."""
    application_events.CALL_CLAIM_LOST.log(log, scope=call.scope, key=call.shown)
