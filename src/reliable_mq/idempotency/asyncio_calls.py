"""Idempotent calls of `async def` functions, the same steps as `thread_calls`; the decorator."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncSession

from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.held_keys import holding
from reliable_mq.idempotency.keyed_function import KeyedFunction, RequestedCall
from reliable_mq.idempotency.sql_calls import CallDecision
from reliable_mq.idempotency.thread_calls import (
    CallBook,
    ThreadCalls,
    held,
    stored_or_fault,
    tell_overtaken,
)

R = TypeVar("R")


def idempotent_function(book: CallBook, keyed: KeyedFunction) -> Callable[..., R]:
    """Return the function that callers call: it shows the parameters that they are to give."""
    calls, calls_async = ThreadCalls(book, keyed), AsyncioCalls(book, keyed)

    @wraps(keyed.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return calls(*args, **kwargs)

    @wraps(keyed.function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await calls_async(*args, **kwargs)

    made: Any = call_async if keyed.is_async else call
    made.__signature__ = keyed.signature
    # Frameworks read annotations too, and would ask their callers for what is filled here.
    filled = {keyed.session, keyed.told}
    hints = keyed.function.__annotations__.items()
    made.__annotations__ = {name: hint for name, hint in hints if name not in filled}
    return cast("Callable[..., R]", made)


class AsyncioCalls:
    """Calls one `async def` function."""

    def __init__(self, book: CallBook, function: KeyedFunction) -> None:
        self._book = book
        self._function = function

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, or return what it returned when it ran with this key."""
        asked = self._function.asked(args, kwargs, self._book.token())
        with holding(self._book, asked.call):
            return await self._call(asked)

    async def _call(self, asked: RequestedCall) -> Any:
        given, database = asked.session, self._book.database
        if given is not None:
            async with given.begin_nested():
                return await self._call_inside(given, asked)
        # Not beside a caller's transaction: another connection would wait for what it has locked.
        await asyncio.to_thread(database.clock.measured_now)
        if self._function.session is None:
            return await self._call_and_note(asked)
        async with database.async_handler_session() as session, session.begin():
            return await self._call_inside(session, asked)

    async def _call_inside(self, session: AsyncSession, asked: RequestedCall) -> Any:
        book, function, call = self._book, self._function, asked.call
        found = await session.run_sync(lambda inner: book.begin(inner.connection(), call))
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        with held(session.sync_session):
            result = await function.run(asked, session, found)
            inner = session.sync_session
            if isinstance(inner, HandlerSession) and inner.is_in_doubt:
                await session.run_sync(lambda _: inner.look_back(undo=False))
        stored = function.encode(result)
        await session.flush()
        is_ours = await session.run_sync(
            lambda inner: book.finish(inner.connection(), call, stored)
        )
        if not is_ours:
            raise UsageError(f"{function.name}: it ended the transaction of its key")
        return function.decode(stored)

    async def _call_and_note(self, asked: RequestedCall) -> Any:
        book, function, call = self._book, self._function, asked.call
        engine = book.database.async_engine
        async with engine.begin() as connection:
            found = await connection.run_sync(book.begin, call)
        function.refuse(found, call)
        if found.answer is CallDecision.REPLAY:
            return function.decode(found.result)
        book.started(call)
        try:
            try:
                result = await function.run(asked, None, found)
            except Exception:
                async with engine.begin() as connection:
                    await connection.run_sync(book.release, call)
                raise
            stored, fault = stored_or_fault(function, result)
            async with engine.begin() as connection:
                is_ours = await connection.run_sync(book.finish, call, stored)
        finally:
            book.ended(call)
        if not is_ours:
            tell_overtaken(call)
        if fault is not None:
            raise fault
        return function.decode(stored)
