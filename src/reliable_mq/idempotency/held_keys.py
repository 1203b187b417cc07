"""The keys of the idempotent calls that are running around a call: it must not use one of them.

Checks a call before it is made. Refuses a call if a call around it has the same key. A second
connection would wait for the first one's commit, which comes later. No database detects that as a
deadlock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from reliable_mq.errors import UsageError
from reliable_mq.idempotency.sql_calls import KeyedCall


class _Held:
    """The key of one running call, and the call around it. A task may outlive its call."""

    is_running = True

    def __init__(self, book: object, call: KeyedCall, outer: "_Held | None") -> None:
        self.name = (id(book), call.scope, call.key_digest)
        self.outer = outer


def _running(held: _Held | None) -> _Held | None:
    """Return a call if it is running; otherwise the next running call around it."""
    while held is not None and not held.is_running:
        held = held.outer
    return held


_innermost: ContextVar[_Held | None] = ContextVar("reliable_mq_held_keys", default=None)


@contextmanager
def holding(book: object, call: KeyedCall) -> Iterator[None]:
    """Hold the key of a call while the block runs, for this thread or task and tasks it starts.

    Args:
        book: the object whose table has the key.
        call: the call.

    Raises:
        UsageError: a call around this one has the same key.
    """
    ours = _Held(book, call, _running(_innermost.get()))
    around = ours.outer
    while around is not None:
        if around.name == ours.name:
            raise UsageError(
                f"a call of {call.scope} with key {call.shown!r} calls {call.scope} with the same "
                "key, and would wait for its own end: call the undecorated code, or use another "
                "key or scope"
            )
        # Drop ended calls: otherwise tasks that start the next one keep them all in memory.
        around.outer = _running(around.outer)
        around = around.outer
    before = _innermost.set(ours)
    try:
        yield
    finally:
        ours.is_running = False
        _innermost.reset(before)
