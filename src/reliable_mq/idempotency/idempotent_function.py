"""The function that replaces a decorated one, for a `def` or an `async def`."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, cast
from weakref import WeakSet

from reliable_mq.database.asyncio_world import AsyncioWorld
from reliable_mq.database.thread_world import ThreadWorld, run
from reliable_mq.idempotency.call_flow import CallFlow
from reliable_mq.idempotency.keyed_function import KeyedFunction
from reliable_mq.idempotency.thread_calls import CallBook

_undecorated: "WeakSet[Callable[..., Any]]" = WeakSet()


def is_undecorated(function: Callable[..., Any]) -> bool:
    """Say whether an idempotent function exists for this one, which itself knows no key."""
    try:
        return function in _undecorated
    except TypeError:  # no hash, or no weak reference
        return False


def idempotent_function(book: CallBook, keyed: KeyedFunction) -> Callable[..., Any]:
    """Return the function for callers; its signature has only the parameters that they give."""
    flow = CallFlow(book, keyed)
    with suppress(TypeError):  # no hash, or no weak reference
        _undecorated.add(keyed.function)

    @wraps(keyed.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(flow.call, ThreadWorld, args, kwargs)

    @wraps(keyed.function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await flow.call(AsyncioWorld, args, kwargs)

    made: Any = call_async if keyed.is_async else call
    made.__signature__ = keyed.signature
    # Web frameworks read annotations, and would ask their callers for the injected parameters.
    filled = {keyed.session, keyed.told}
    hints = keyed.function.__annotations__.items()
    made.__annotations__ = {name: hint for name, hint in hints if name not in filled}
    return cast("Callable[..., Any]", made)
