"""What ASGI applications share: the lifespan that opens and closes a `ReliableMQ`.

It is used as it is with Starlette, FastAPI and Litestar. It needs no extra.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from reliable_mq.app.application import ReliableMQ
from reliable_mq.errors import UsageError
from reliable_mq.settings import EMBEDDED

__all__ = ["lifespan"]


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

    The lifespan raises `ConfigurationError` if a table is missing, or if a setting is wrong. With
    `consume=True` it raises `UsageError` if the application has no consumers.

    Raises:
        UsageError: `mq` is something else, such as the web application.
    """
    if not isinstance(mq, ReliableMQ):
        raise UsageError(
            f"lifespan({type(mq).__name__}): give it your ReliableMQ, as lifespan=lifespan(mq)"
        )

    @asynccontextmanager
    async def whole(app: Any) -> AsyncIterator[Any]:
        try:
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
    else:
        mq.databases.check_tables()


async def _close(mq: ReliableMQ) -> None:
    """Let handlers finish, send the committed messages, close all connections of this loop."""
    try:
        await asyncio.to_thread(mq.close)
    finally:
        await mq.databases.close_async()
