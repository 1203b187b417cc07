"""Idempotent calls that commit their key and result apart from the transactions around them.

Receives the transactions that are used while such a call runs. Refuses those that end later than
the call: if one of them fails, the stored result would speak of an effect that does not exist.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.orm import Session

from reliable_mq.errors import UsageError


class _Opened(NamedTuple):
    """A block of `mq.transaction` that was begun within a call; `root`: what it has joined."""

    block: Any
    source: Any
    root: Any


class CallApart:
    """One call that runs; its key has a transaction of its own.

    Args:
        name: the function's name.
        idle: sessions that it was given, in no transaction. A query or an `add` begins one.
    """

    def __init__(self, name: str, idle: Sequence[Session] = ()) -> None:
        self.name = name
        self._uncommitted = list(idle)
        self.is_running = True  # tasks that it started may outlive it
        self._opened: list[_Opened] = []

    def note(self, block: Any, source: Any, *, is_joined: bool) -> None:
        """Note a block that begins within this call."""
        source = getattr(source, "sync_session", None) or getattr(source, "sync_connection", source)
        root = source.get_transaction() if is_joined else None
        self._opened.append(_Opened(block, source, root))

    def check_ended(self) -> None:
        """Check that every transaction of this call has ended.

        Raises:
            UsageError: one of them goes on, and could still fail.
        """
        for block, source, root in self._opened:
            if block.is_open or (root is not None and source.get_transaction() is root):
                raise outlives(self.name)
        if any(each.in_transaction() for each in self._uncommitted):
            raise outlives(self.name)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which of the given sessions the function commits: it may query them afterwards."""
        idle = list(self._uncommitted)

        def note_commit(session: Session) -> None:
            self._uncommitted = [each for each in self._uncommitted if each is not session]

        for each in idle:
            event.listen(each, "after_commit", note_commit)
        try:
            yield
        finally:
            for each in idle:
                event.remove(each, "after_commit", note_commit)


_running: ContextVar[CallApart | None] = ContextVar("reliable_mq_call_apart", default=None)

innermost_call = _running.get
"""Returns the innermost such call here, which may have ended, or None. It costs no frame."""


def running_apart() -> CallApart | None:
    """Return the innermost such call that runs here, or None."""
    call = _running.get()
    return call if call is None or call.is_running else None


@contextmanager
def apart(name: str, idle: Sequence[Session] = ()) -> Iterator[None]:
    """Run a call; at its end check that its transactions have ended. Arguments: of `CallApart`."""
    call = CallApart(name, idle)
    before = _running.set(call)
    try:
        with call.watched():
            yield
        call.check_ended()
    finally:
        call.is_running = False
        _running.reset(before)


def outlives(name: str) -> UsageError:
    """Return the error of a transaction that ends after the call that uses it."""
    return UsageError(
        f"{name} is idempotent without a session, so its key and result are committed before the "
        "transaction around it, which may still fail: give the function a parameter `session: "
        "Session = injected`, or `tx: Transaction` that callers pass (in an async def AsyncSession "
        "or AsyncTransaction), and use only that one; then all of it is one commit"
    )
