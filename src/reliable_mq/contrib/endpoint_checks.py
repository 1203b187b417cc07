"""What an ASGI application does with a transaction or a key, and would not be told otherwise.

Reads the routes of the application when its server starts. Knows FastAPI and Starlette by the
attributes of their routes only.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.errors import UsageError
from reliable_mq.idempotency.idempotent_function import is_undecorated

__all__ = ["RequestKind", "check_endpoints", "kinds"]


@dataclass(frozen=True)
class RequestKind:
    """What the dependency of a transaction gives: for `async def`? In a session of its own?"""

    is_async: bool
    is_ours: bool


kinds: "WeakKeyDictionary[Callable[..., Any], RequestKind]" = WeakKeyDictionary()
"""The functions of our dependencies."""


def check_endpoints(app: Any) -> bool:
    """Check the endpoints of an application; return whether one has an `AsyncTransaction` of ours.

    It warns of an endpoint that has a session of its own and a transaction of another one, and of
    an `async def` that has a `sync_transaction`.

    Raises:
        UsageError: a route runs a function without its `@mq.idempotent`.
    """
    is_async = False
    for route in _routes_of(getattr(app, "routes", ())):
        endpoint = getattr(route, "endpoint", None)
        if not callable(endpoint):
            continue
        methods = ",".join(sorted(getattr(route, "methods", None) or ()))
        place = f"{methods} {getattr(route, 'path', '')}".strip()
        name = getattr(endpoint, "__name__", "the endpoint")
        if is_undecorated(endpoint):
            raise UsageError(
                f"{place}: {name} runs without its @mq.idempotent, and would run for each request: "
                "write @app.post(…) above @mq.idempotent(…)"
            )
        dependant = getattr(route, "dependant", None)
        for text in _doubts(endpoint, dependant):
            warnings.warn(f"{place}: {name} {text}", stacklevel=2)
        is_async |= any(kind.is_async and kind.is_ours for kind in _kinds_of(dependant))
    return is_async


def _routes_of(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)  # FastAPI's include_router
        if callable(included):
            yield from (each.original_route for each in included())
        elif inner := getattr(route, "routes", None):
            yield from _routes_of(inner)
        else:
            yield route


def _doubts(endpoint: Callable[..., Any], dependant: Any) -> Iterator[str]:
    found = _kinds_of(dependant)
    if inspect.iscoroutinefunction(endpoint) and any(not kind.is_async for kind in found):
        yield (
            "is an async def with sync_transaction(mq), so each statement stops all other requests:"
            " take transaction(mq), or write def"
        )
    session = _own_session(endpoint, dependant)
    if session is not None and any(kind.is_ours for kind in found):
        yield (
            f"has its own session ({session}) and a transaction of another session, so rows and "
            "messages are two commits, and the first one is yours to make: write "
            f"transaction(mq, session={session})"
        )


def _kinds_of(dependant: Any) -> list[RequestKind]:
    return [kinds[call] for call in _calls_of(dependant) if _is_known(call)]


def _is_known(call: Any) -> bool:
    try:
        return call in kinds
    except TypeError:  # an object without a hash or a weak reference
        return False


def _calls_of(dependant: Any) -> Iterator[Any]:
    for each in getattr(dependant, "dependencies", ()):
        yield each.call
        yield from _calls_of(each)


def _own_session(endpoint: Callable[..., Any], dependant: Any) -> str | None:
    """Return the name of the application's dependency that gives the endpoint a session."""
    try:
        hints = get_type_hints(endpoint)
    except Exception:  # noqa: BLE001 - a text as an annotation is any code
        return None
    for each in getattr(dependant, "dependencies", ()):
        hint = hints.get(getattr(each, "name", None) or "")
        if isinstance(hint, type) and issubclass(hint, Session | AsyncSession):
            return str(getattr(each.call, "__name__", "get_session"))
    return None
