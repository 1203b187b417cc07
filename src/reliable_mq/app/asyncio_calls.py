"""Idempotent calls of `async def` functions, the same steps as `thread_calls`; the decorator."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncSession

from reliable_mq.app.keyed_function import KeyedFunction
from reliable_mq.app.thread_calls import (
    CallBook,
    ThreadCalls,
    held,
    stored_or_fault,
    tell_overtaken,
)
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.business_key import BusinessKey
from reliable_mq.idempotency.sql_calls import Answer, Call

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
        function = self._function
        given = kwargs.pop(function.session, None) if function.session is not None else None
        call, key = function.call_of(args, kwargs, self._book.token())
        if given is None:  # else another connection would wait for what the caller's has locked
            await asyncio.to_thread(self._book.database.clock.measured_now)
        if function.session is None:
            return await self._call_and_note(call, key, args, kwargs)
        if given is not None:
            async with given.begin_nested():
                return await self._call_inside(given, call, key, args, kwargs)
        async with self._book.database.async_handler_session() as session, session.begin():
            return await self._call_inside(session, call, key, args, kwargs)

    async def _call_inside(
        self,
        session: AsyncSession,
        call: Call,
        key: BusinessKey,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        book, function = self._book, self._function
        found = await session.run_sync(lambda inner: book.begin(inner.connection(), call))
        function.refuse(found, call)
        if found.answer is Answer.REPLAY:
            return function.decode(found.result)
        more = function.filled(kwargs, session, key, found)
        with held(session.sync_session):
            result = await function.function(*args, **more)
        stored = function.encode(result)
        await session.flush()
        is_ours = await session.run_sync(
            lambda inner: book.finish(inner.connection(), call, stored)
        )
        if not is_ours:
            raise UsageError(f"{function.name}: it ended the transaction of its key")
        return function.decode(stored)

    async def _call_and_note(
        self, call: Call, key: BusinessKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        book, function = self._book, self._function
        engine = book.database.async_engine
        async with engine.begin() as connection:
            found = await connection.run_sync(book.begin, call)
        function.refuse(found, call)
        if found.answer is Answer.REPLAY:
            return function.decode(found.result)
        book.started(call)
        try:
            try:
                more = function.filled(kwargs, None, key, found)
                result = await function.function(*args, **more)
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
