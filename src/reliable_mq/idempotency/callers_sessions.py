"""Sessions among the arguments of an idempotent call. Values only.

Receives annotations and arguments. Finds the session, connection or transaction of the caller that
a function could use without its key: then key and result would be committed, and the caller's
transaction could still fail.
"""

import functools
from collections.abc import Iterator, Mapping
from types import MethodType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.calls_apart import outlives
from reliable_mq.outbox.sql_transaction import Transaction

_SCOPED = (scoped_session, async_scoped_session)
_SESSIONS = (Session, AsyncSession, scoped_session, async_scoped_session)
_SOURCES = (Session, AsyncSession, Connection, AsyncConnection)
_DEPTH_MAX = 4
_PARTS_MAX = 100  # of one argument; more would cost more than they would show
_SCOPES = {scoped_session: Session, async_scoped_session: AsyncSession}


def kind_of(hint: Any) -> type | None:
    """Return the class that an annotation means: `X | None` and `X[…]` mean X; None: no class."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [each for each in get_args(hint) if each is not NoneType]
        return kind_of(kinds[0]) if len(kinds) == 1 else None
    origin = get_origin(hint)
    found = origin if isinstance(origin, type) else hint
    return _SCOPES.get(found, found) if isinstance(found, type) else None


def is_session(value: object) -> bool:
    """Say whether a value is a session, or gives that of the thread or task."""
    return isinstance(value, _SESSIONS)


def session_of_scope(value: Any) -> Any:
    """Return the session of this thread or task, if a value gives one; otherwise the value."""
    return value() if isinstance(value, _SCOPED) else value


def idle_sessions(arguments: Mapping[str, Any]) -> list[Session]:
    """Return the sessions among arguments and their attributes that are in no transaction."""
    found = (session_of_scope(each) for each in _values_of(arguments) if is_session(each))
    inner = (getattr(each, "sync_session", each) for each in found)
    return [each for each in inner if not each.in_transaction()]


def refuse_open_sessions(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that are in a transaction of the caller, or have an attribute that is.

    Args:
        name: the function's.
        arguments: by the names of its parameters.

    Raises:
        UsageError: there is one.
    """
    if any(map(_is_open, _values_of(arguments))):
        raise outlives(name)


def _values_of(arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Return arguments, what is in them, and their attributes."""
    for value in arguments.values():
        yield from _parts_of(value, attributes=1, depth=_DEPTH_MAX)


def _parts_of(value: Any, attributes: int, depth: int) -> Iterator[Any]:
    yield value
    if depth == 0 or isinstance(value, str | bytes | int | float | type | None):
        return
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        parts = [value.__self__]
    elif attributes and not isinstance(value, (*_SESSIONS, *_SOURCES)):
        attributes -= 1
        parts = list(_attributes_of(value))
    else:
        return
    for each in parts[:_PARTS_MAX]:
        yield from _parts_of(each, attributes, depth - 1)


def _attributes_of(value: Any) -> Iterator[Any]:
    yield from list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from (getattr(value, each, None) for each in names)


def _is_open(value: object) -> bool:
    if isinstance(value, Transaction | AsyncTransaction):
        return value.is_open
    if isinstance(value, _SCOPED):
        if not value.registry.has():
            return False
        value = value.registry()
    return isinstance(value, _SOURCES) and value.in_transaction()
