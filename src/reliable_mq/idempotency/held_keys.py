"""The keys of idempotent calls that the caller is inside of: with one of them it waits for itself.

Receives a call before it is made. Refuses it where a call around it has its key: a second
connection would wait for the first one's commit, which comes after it, and no database sees that
as a deadlock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from reliable_mq.errors import UsageError
from reliable_mq.idempotency.sql_calls import KeyedCall


class _Held:
    """The key of one running call, and the one around it. A task may outlive the call it is of."""

    is_running = True

    def __init__(self, book: object, call: KeyedCall, outer: "_Held | None") -> None:
        self.name = (id(book), call.scope, call.key_digest)
        self.outer = outer


def _running(held: _Held | None) -> _Held | None:
    """Return a call or, when it has ended, the next one around it that has not."""
    while held is not None and not held.is_running:
        held = held.outer
    return held


_innermost: ContextVar[_Held | None] = ContextVar("reliable_mq_held_keys", default=None)


@contextmanager
def holding(book: object, call: KeyedCall) -> Iterator[None]:
    """Hold the key of a call while the block runs, for this thread or task and what it starts.

    Args:
        book: whose table the key is in.
        call: the call.

    Raises:
        UsageError: when a call that this one is made in has the key.
    """
    ours = _Held(book, call, _running(_innermost.get()))
    around = ours.outer
    while around is not None:
        if around.name == ours.name:
            raise UsageError(
                f"a call of {call.scope} with key {call.shown!r} calls {call.scope} with the same "
                "key, and would wait for its own end: call the undecorated code, or give another "
                "key or scope"
            )
        # Ended ones are let go: else a task that each time starts the next one keeps them all.
        around.outer = _running(around.outer)
        around = around.outer
    before = _innermost.set(ours)
    try:
        yield
    finally:
        ours.is_running = False
        _innermost.reset(before)
