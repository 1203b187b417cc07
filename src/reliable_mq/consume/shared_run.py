"""What becomes of attempts that are run in one transaction: who failed, who is done, who never ran.

Receives each step from whoever runs them, in a thread or on a loop; hands on what is to be settled
when the transaction ended under one of them. It refuses to know the database.
"""

from collections.abc import Sequence

from reliable_mq.consume.sql_receipts import Attempt

APART = 100
"""So many batches do not try to share a transaction, after one had to be run again."""


class SharedTransaction:
    """The attempts of one transaction.

    Invariant: at most one runs. The others are done, or wait for their turn.

    Args:
        attempts: in the order in which they run.
        have_rows: their rows, which say CONSUMED, are written before the first one runs.
    """

    def __init__(self, attempts: Sequence[Attempt], *, have_rows: bool = False) -> None:
        self._waiting = {each.entry.token: each for each in attempts} if have_rows else {}
        self._running: Attempt | None = None
        self._failure: Exception | None = None
        self.done: list[Attempt] = []

    def begin(self, attempt: Attempt) -> None:
        """Note that an attempt's handler is called now."""
        self._waiting.pop(attempt.entry.token, None)
        self._running, self._failure = attempt, None

    def end(self) -> None:
        """Note that what runs is done: its effect is in the transaction."""
        if self._running is not None:
            self.done.append(self._running)
        self._running = None

    def fail(self, error: Exception) -> None:
        """Note why what runs has failed."""
        self._failure = error

    def undo(self) -> None:
        """Note that what failed is undone and recorded; the transaction goes on without it."""
        self._running, self._failure = None, None

    @property
    def failed(self) -> tuple[Attempt, Exception] | None:
        """Whose handler failed, and why; None: the transaction failed outside of handlers."""
        if self._running is None or self._failure is None:
            return None
        return self._running, self._failure

    @property
    def not_run(self) -> list[Attempt]:
        """Who has a row that says CONSUMED, and whose handler was not called."""
        return list(self._waiting.values())


class SharingPolicy:
    """Says whether the next batch is tried in one transaction without a savepoint each.

    Not for a while after a statement showed that may end the transaction: the rows of messages
    that were not begun stand in it.
    """

    def __init__(self) -> None:
        self._apart = 0

    def is_tried(self, attempts: Sequence[Attempt]) -> bool:
        """Say whether these attempts are tried together."""
        if self._apart:
            self._apart -= 1
            return False
        return not any(each.receipt for each in attempts)

    def refuse(self) -> None:
        """Note that a handler executes statements that may end the transaction."""
        self._apart = APART
