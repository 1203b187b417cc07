"""Starlette: the lifespan, and health endpoints. A transaction is `async with mq.transaction()`.

    app = Starlette(lifespan=lifespan(mq), routes=[*routes, *health_routes(mq)])

Commit inside of the endpoint, before it returns its response: then a client that gets a success can
rely on it.
"""

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.asgi import AnswerDatabaseAway, lifespan
from reliable_mq.contrib.health import liveness, readiness
from reliable_mq.extras import extra_of

with extra_of("reliable_mq.contrib.starlette"):
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import BaseRoute, Route

__all__ = ["AnswerDatabaseAway", "health_routes", "lifespan"]


def health_routes(mq: ReliableMQ, *, prefix: str = "/health") -> list[BaseRoute]:
    """Return routes for `GET {prefix}/live` and `GET {prefix}/ready`: 200, or 503 with a reason."""

    async def live(_request: Request) -> JSONResponse:  # not in a thread: all may be waiting
        health = liveness(mq)
        return JSONResponse(health.body, health.status)

    def ready(_request: Request) -> JSONResponse:
        health = readiness(mq)
        return JSONResponse(health.body, health.status)

    return [Route(f"{prefix}/live", live), Route(f"{prefix}/ready", ready)]
