"""A server that is given the messaging instead of the web application gets one line about it."""

from typing import TYPE_CHECKING, Any

from reliable_mq.errors import UsageError

_SERVED = (
    "this is a ReliableMQ, not the web application: name the application, as in `uvicorn shop:app`"
)


class NotServed:
    """Refuses to be called as an application of ASGI or WSGI, or as a lifespan."""

    if not TYPE_CHECKING:  # a type checker must see that it cannot be called

        def __call__(self, *given: Any, **_named: Any) -> Any:
            """Refuse; a server of ASGI that starts is told in its own protocol, so that it ends."""
            if not given:  # uvicorn asks so whether it is a factory, and goes on after this error
                raise TypeError(_SERVED)
            scope = given[0]
            if not isinstance(scope, dict):
                raise UsageError(
                    "a ReliableMQ is not called; if this is the lifespan of an application, write "
                    "lifespan=lifespan(mq)"
                )
            if scope.get("type") != "lifespan":
                raise UsageError(_SERVED)
            return _refuse_start(*given[1:]) if len(given) > 1 else _refuse_start


async def _refuse_start(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": _SERVED})
