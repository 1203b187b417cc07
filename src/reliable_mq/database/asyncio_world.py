"""The world of a flow on an event loop, within the calling task; see `thread_world`."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from reliable_mq.database.sql_database import Database
from reliable_mq.database.thread_world import ThreadWorld

T = TypeVar("T")


class AsyncioWorld(ThreadWorld):
    """The steps of a flow on the loop; other tasks run while a step waits.

    Functions that take a session or a connection run on SQLAlchemy's greenlet.
    """

    may_block = False

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._task = asyncio.current_task()

    def session(self) -> AsyncSession:
        return self._database.async_handler_session()

    def series(self) -> None:
        return None

    def async_scope(self, scope: Any) -> Any:
        return scope

    def sync_session(self, session: AsyncSession | AsyncConnection) -> Any:
        if isinstance(session, AsyncSession):
            return session.sync_session
        return session.sync_connection

    async def in_session(
        self, session: AsyncSession | AsyncConnection, function: Callable[..., T], *arguments: Any
    ) -> T:
        return await session.run_sync(function, *arguments)

    async def in_transaction(self, function: Callable[..., T], *arguments: Any) -> T:
        async with self._database.async_engine.begin() as connection:
            return await connection.run_sync(function, *arguments)

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(function, *arguments)

    async def call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return await function(*given, **named)

    def is_ended_by(self, error: BaseException) -> bool:
        """Return whether the flow's own task is cancelled or closed."""
        if isinstance(error, asyncio.CancelledError) and self._task is not None:
            return self._task.cancelling() > 0
        return isinstance(error, GeneratorExit) and not self._runs()

    def _runs(self) -> bool:
        """Return whether the task runs here; a closed coroutine is thrown into from elsewhere."""
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:  # no loop runs
            return False

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
