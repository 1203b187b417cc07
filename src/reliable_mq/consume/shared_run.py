"""Records the progress of attempts in one shared transaction: failed, done, not run.

Receives each step from its runner, in a thread or on a loop. Returns what must be settled if the
transaction ended during an attempt. Does not know the database.
"""

from collections.abc import Sequence

from reliable_mq.consume.sql_receipts import Attempt

APART = 100
"""After a batch that had to run again, this number of batches does not share a transaction."""


class SharedTransaction:
    """The attempts of one transaction.

    Invariant: at most one attempt is running. The others are done, or wait for their turn.

    Args:
        attempts: in the order in which they run.
        have_rows: their CONSUMED rows are written before the first one runs.
    """

    def __init__(self, attempts: Sequence[Attempt], *, have_rows: bool = False) -> None:
        self._waiting = {each.entry.token: each for each in attempts} if have_rows else {}
        self._running: Attempt | None = None
        self._failure: Exception | None = None
        self.done: list[Attempt] = []

    def begin(self, attempt: Attempt) -> None:
        """Note that an attempt's handler is being called."""
        self._waiting.pop(attempt.entry.token, None)
        self._running, self._failure = attempt, None

    def end(self) -> None:
        """Note that the running attempt is done: its effect is in the transaction."""
        if self._running is not None:
            self.done.append(self._running)
        self._running = None

    def fail(self, error: Exception) -> None:
        """Note why the running attempt has failed."""
        self._failure = error

    def undo(self) -> None:
        """Note that the failed attempt is rolled back and recorded; the transaction continues."""
        self._running, self._failure = None, None

    @property
    def failed(self) -> tuple[Attempt, Exception] | None:
        """The attempt whose handler failed, and why; None: the failure was outside of handlers."""
        if self._running is None or self._failure is None:
            return None
        return self._running, self._failure

    @property
    def not_run(self) -> list[Attempt]:
        """The attempts that have a CONSUMED row, and whose handlers were not called."""
        return list(self._waiting.values())


class SharingPolicy:
    """Decides whether the next batch is tried in one transaction without savepoints.

    After a statement that may end the transaction, it is not tried for a while: such a transaction
    has CONSUMED rows of messages that were not begun.
    """

    def __init__(self) -> None:
        self._apart = 0

    def is_tried(self, attempts: Sequence[Attempt]) -> bool:
        """Return whether to try these attempts together."""
        if self._apart:
            self._apart -= 1
            return False
        return not any(each.receipt for each in attempts)

    def refuse(self) -> None:
        """Note that a handler executes statements that may end the transaction."""
        self._apart = APART
