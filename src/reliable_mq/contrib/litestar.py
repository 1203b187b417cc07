"""Litestar: a plugin with the lifespan, a transaction for each request, and health endpoints.

    mq = ReliableMQ("shop", …)
    app = Litestar([place], plugins=[LitestarMQ(mq)])

    @post("/orders")
    async def place(data: NewOrder, tx: NamedDependency[AsyncTransaction]) -> None:
        tx.session.add(Order(item=data.item))
        await tx.send("orders", {"item": data.item})

**When it commits.** After the handler has returned, before the response is sent: a client that gets
a success can rely on it. A handler that raises rolls back. If the connection to the client breaks
after the commit, order and message exist although the client got no answer.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.asgi import lifespan
from reliable_mq.contrib.health import liveness, readiness
from reliable_mq.extras import extra_of
from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.async_transaction import AsyncTransaction

with extra_of("reliable_mq.contrib.litestar"):
    from litestar import MediaType, Response, Router, get
    from litestar.di import Provide
    from litestar.plugins import InitPlugin

if TYPE_CHECKING:
    from litestar.config.app import AppConfig

__all__ = ["LitestarMQ"]


class LitestarMQ(InitPlugin):
    """Messaging of a Litestar application.

    Args:
        mq: the application's messaging.
        consume: whether this process also runs the consumers; see `asgi.lifespan`.
        tx: the name of the dependency that is the transaction of a request.
        database: the name of its database; None: "main".
        health: the path of `/live` and `/ready`, see the module `health`; "": no such endpoints.
    """

    def __init__(
        self,
        mq: ReliableMQ,
        *,
        consume: bool | None = None,
        tx: str = "tx",
        database: str | None = None,
        health: str = "/health",
    ) -> None:
        self.mq = mq
        self._consume = consume
        self._tx = tx
        self._database = database
        self._health = health

    def on_app_init(self, app_config: "AppConfig") -> "AppConfig":
        """Add the lifespan, the dependency and the endpoints; called by Litestar."""
        app_config.lifespan = [lifespan(self.mq, consume=self._consume), *app_config.lifespan]
        app_config.dependencies = {self._tx: Provide(self._transaction), **app_config.dependencies}
        app_config.signature_types = [
            *app_config.signature_types,
            *(AsyncSession, AsyncTransaction, ReceivedMessage),
        ]
        if self._health:
            app_config.route_handlers = [*app_config.route_handlers, self._health_router()]
        return app_config

    async def _transaction(self) -> AsyncIterator[AsyncTransaction]:
        async with self.mq.transaction(database=self._database) as tx:
            yield tx

    def _health_router(self) -> Router:
        mq = self.mq

        @get("/live", sync_to_thread=False, include_in_schema=False)
        def live() -> Response[dict[str, object]]:
            health = liveness(mq)
            return Response(health.body, status_code=health.status, media_type=MediaType.JSON)

        @get("/ready", sync_to_thread=True, include_in_schema=False)
        def ready() -> Response[dict[str, object]]:
            health = readiness(mq)
            return Response(health.body, status_code=health.status, media_type=MediaType.JSON)

        return Router(self._health, route_handlers=[live, ready])
