"""What ASGI applications share: the lifespan that opens and closes a `ReliableMQ`.

It is used as it is with Starlette, FastAPI and Litestar. It needs no extra.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.endpoint_checks import check_endpoints
from reliable_mq.database.sql_faults import is_database_away
from reliable_mq.errors import UsageError
from reliable_mq.settings import EMBEDDED

__all__ = ["AnswerDatabaseAway", "lifespan"]


def lifespan(
    mq: ReliableMQ, own: Callable[[Any], Any] | None = None, *, consume: bool | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that opens `mq` when the server starts, and closes it when it stops.

    At the start, the tables are checked, so that a server without them does not start. At the stop,
    running handlers finish, and committed messages are sent.

    Args:
        mq: the application's messaging.
        own: the lifespan of the application. It runs while `mq` is open; what it yields is passed
            on.
        consume: whether this process also runs the consumers. None: only if the broker is embedded
            in this process, because no other process could reach it then.

    The lifespan raises `ExtraMissing` if an endpoint needs an asynchronous driver that is not
    installed. It raises `ConfigurationError` if a table is missing, or if a setting is wrong. It
    raises `UsageError` if a route runs a function without its `@mq.idempotent`, and, with
    `consume=True`, if the application has no consumers.

    Raises:
        UsageError: `mq` is something else, such as the web application, or `own` is a generator.
    """
    if not isinstance(mq, ReliableMQ):
        raise UsageError(
            f"lifespan({type(mq).__name__}): give it your ReliableMQ, as lifespan=lifespan(mq)"
        )

    if inspect.isasyncgenfunction(own) or inspect.isgeneratorfunction(own):
        raise UsageError(
            f"lifespan(mq, {own.__name__}): {own.__name__} yields; write @asynccontextmanager (of "
            "contextlib) above its async def"
        )

    @asynccontextmanager
    async def whole(app: Any) -> AsyncIterator[Any]:
        try:
            if check_endpoints(app):
                _ = mq.database.async_engine  # connects to nothing; needs its driver
            await asyncio.to_thread(_open, mq, consume)
            if own is None:
                yield None
            else:
                async with own(app) as state:
                    yield state
        finally:
            await _close(mq)

    return whole


def _open(mq: ReliableMQ, consume: bool | None) -> None:
    if consume is None:
        consume = bool(mq.consumer_groups) and mq.settings.broker.startswith(EMBEDDED)
    if consume:
        mq.start()
        return
    try:
        mq.databases.check_tables()
    except Exception as error:
        # A server starts without its database: the log has said so, and requests are refused.
        if not is_database_away(error):
            raise


async def _close(mq: ReliableMQ) -> None:
    """Let handlers finish, send the committed messages, close all connections of this loop."""
    try:
        await asyncio.to_thread(mq.close)
    finally:
        await mq.databases.close_async()


class AnswerDatabaseAway:
    """Middleware: answers 503 to a request whose database is away, not 500 with a traceback.

    Write `app.add_middleware(AnswerDatabaseAway)`. It knows the errors of all drivers, also those
    that asyncpg raises itself. Every other error goes on. So does this one, if a part of the
    response has been sent.

    Args:
        app: the application; the framework gives it.
        retry_after: seconds, the header Retry-After. Default 5.
    """

    def __init__(self, app: Any, retry_after: int = 5) -> None:
        self._app = app
        self._retry_after = retry_after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the application answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def note(message: Any) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if is_begun or not is_database_away(error):
                raise
            body = b'{"detail":"the database is away, try again"}'
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"retry-after", b"%d" % self._retry_after),
            ]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})
