"""Decides how a delivery without an effect ends: what it costs, and when it is delivered again.

Receives an attempt and its error; returns an outcome. Does not know the database:
`sql_consume_transaction` writes the rows.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy.exc import DBAPIError

from reliable_mq.consume.consumer import Consumer
from reliable_mq.consume.sql_receipts import Attempt, numbered
from reliable_mq.database.attempt_list import AttemptEnd
from reliable_mq.database.ended_transactions import TransactionEnded
from reliable_mq.database.sql_faults import (
    FaultLog,
    fault_line,
    is_database_busy,
    is_database_down,
    is_row_refused,
)
from reliable_mq.errors import UsageError, error_text
from reliable_mq.idempotency.lease_store import LeaseEnd
from reliable_mq.outcomes import CONSUMED, RAISED, Outcome, Reject, Retry, fault_of, retry_of_ours
from reliable_mq.own_frames import with_own_frames
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.message_facts import key_of

log = logging.getLogger(__name__)

DATABASE_DOWN_SECONDS = 1.0
BUSY_SECONDS = 0.05
BUSY_SECONDS_MAX = 1.0
BUSY_IN_A_ROW_MAX = 16
"""After this many times an attempt counts: the handler may block itself."""
DOWN_TIMES_MAX = 5
"""After this many times an attempt counts. Each attempt began, so the database was reachable. The
fault is a connection that the handler's statement kills, or another database."""
REFUSED_TIMES_MAX = 3
"""After this many times a message is a dead letter: no row of the consume log can hold its id."""
_MESSAGES_MAX = 1_000


class ClaimLost(Exception):
    """Another owner has taken the claim over; this attempt's effect must not be committed."""


class HandlerExit(Exception):
    """A handler raised an exit of thread, task or process. It counts as a failed attempt."""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """How a delivery ended: for the client, and for the lease in Redis (None: not ours).

    `is_put_off`: it was not begun, and must run when no other handler of this process runs. `why`:
    the reason of an attempt without an effect, for the consume log; `end`: how it ended.
    """

    outcome: Outcome
    lease_end: LeaseEnd | None = None
    is_put_off: bool = False
    why: str = ""
    end: AttemptEnd = AttemptEnd.FAILED

    def next_at(self, now: float) -> float:
        """Return when the next attempt is expected: at once where this one counts for none."""
        if isinstance(self.outcome, Retry) and self.outcome.counts:
            return now + (self.outcome.after or 0.0)
        return now

    @property
    def in_ascii(self) -> "DeliveryOutcome":
        """The same, with a reason that a database of any encoding can hold."""
        outcome = self.outcome
        if isinstance(outcome, Reject):
            outcome = Reject(_in_ascii(outcome.reason))
        return msgspec.structs.replace(self, outcome=outcome, why=_in_ascii(self.why))


def _in_ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


DONE = DeliveryOutcome(CONSUMED, "done")
PUT_OFF = DeliveryOutcome(Retry(0.0, counts=False), "back", is_put_off=True)
Results = dict[str, DeliveryOutcome]


def one_of_each_key(attempts: Sequence[Attempt], results: Results) -> list[Attempt]:
    """Return one attempt for each business key; the others are delivered again after it."""
    first: dict[str, Attempt] = {}
    for each in attempts:
        key = each.entry.message_id if each.key is None else each.key.message_id
        if first.setdefault(key, each) is not each:
            results[each.entry.token] = DeliveryOutcome(Retry(BUSY_SECONDS, counts=False), "back")
    return list(first.values())


class RetryDecider:
    """Decides about the attempts of one consumer.

    Invariant J3: a fault outside of the message costs no attempt, but not without end.

    Args:
        consumer: the consumer of these attempts.
        retry_waits: the waits between attempts, in seconds.
    """

    def __init__(self, consumer: Consumer, retry_waits: Sequence[float]) -> None:
        self._consumer = consumer
        self._retry_waits = retry_waits
        self._faults = FaultLog(log, f"group {consumer.group}: its messages wait")
        self._busy, self._down, self._refused = _Times(), _Times(), _Times()

    def as_last_one(self, attempt: Attempt, error: Exception) -> Attempt:
        """Return an attempt as the last one if its handler ended its transaction.

        Then the row forbids another one, even if this process dies before it sends the dead letter.
        """
        if not isinstance(error, TransactionEnded):
            return attempt
        number = max(attempt.entry.attempt, self._consumer.max_attempts)
        return numbered(attempt, number, attempt.entry.in_doubt)

    def decide_failure(self, attempt: Attempt, error: Exception) -> DeliveryOutcome:
        """Return how a failed attempt ends."""
        number, message_id = attempt.entry.attempt, attempt.entry.message_id
        wait = self._retry_waits[min(number, len(self._retry_waits)) - 1]
        if isinstance(error, RAISED) and (fault := fault_of(error)):  # a subclass may say anything
            error = UsageError(f"a handler says {type(error).__name__}: {fault}")
        if isinstance(error, ClaimLost):
            return DeliveryOutcome(retry_of_ours(wait, counts=False))
        if isinstance(error, Reject):
            rejected = Reject(error.reason)
            return DeliveryOutcome(rejected, "fail", why=error.reason, end=AttemptEnd.REJECTED)
        if isinstance(error, TransactionEnded):  # a retry would repeat a part of its effect
            return DeliveryOutcome(Reject(error_text(error)), "fail", why=error_text(error))
        if is_database_down(error) and self._down.more(message_id) <= DOWN_TIMES_MAX:
            self._faults.log_fault(error)
            return DeliveryOutcome(Retry(DATABASE_DOWN_SECONDS, counts=False), "back")
        if is_database_busy(error) and (soon := self._busy_wait(message_id)):
            self._faults.log_fault(error)
            return DeliveryOutcome(Retry(soon, counts=False), "back")
        if isinstance(error, Retry):
            wait = wait if error.after is None else error.after
            why, kept = error.why, error.grounds
        else:
            why = kept = error_text(error)
        counts = not isinstance(error, Retry) or error.counts
        if counts and number >= self._consumer.max_attempts:
            reason = f"attempt {number} of {self._consumer.max_attempts} failed: {why}"
            return DeliveryOutcome(Reject(reason), "fail", why=kept)
        details: dict[str, Any] = {
            "group": self._consumer.group,
            "attempt": number,
            "message_id": message_id,
            "key": key_of(attempt.message),
            "seconds": wait,
            "reason": why,
        }
        if isinstance(error, Retry):
            application_events.ATTEMPT_ROLLED_BACK.log(log, **details)
        else:
            shown: BaseException | None = None if isinstance(error, UsageError) else error
            if isinstance(error, DBAPIError) and error.orig is not None:
                shown = with_own_frames(error, error.orig)
            application_events.ATTEMPT_FAILED.log(log, traceback_of=shown, **details)
        end: LeaseEnd = "fail" if counts else "back"
        return DeliveryOutcome(retry_of_ours(wait, counts=counts), end, why=kept)

    def _busy_wait(self, message_id: str) -> float | None:
        """Return the wait after a lost conflict with other transactions; None: it counts now."""
        times = self._busy.more(message_id)
        if times > BUSY_IN_A_ROW_MAX:
            self._busy.forget(message_id)
            return None
        return min(BUSY_SECONDS * 2.0 ** (times - 1), BUSY_SECONDS_MAX)

    def unhandled(self, error: Exception) -> DeliveryOutcome:
        """Return how a delivery ends whose handler was never called."""
        return DeliveryOutcome(Retry(self.wait_after(error), counts=False), "back")

    def wait_after(self, error: Exception) -> float:
        """Log a fault of the database; return the seconds until the next try."""
        self._faults.log_fault(error)
        return BUSY_SECONDS if is_database_busy(error) else DATABASE_DOWN_SECONDS

    def unwritten(self, message_id: str, error: Exception) -> DeliveryOutcome:
        """Return how a delivery ends if no row could be written for it."""
        if is_row_refused(error) and self._refused.more(message_id) >= REFUSED_TIMES_MAX:
            return DeliveryOutcome(
                Reject(f"the consume log refuses it: {fault_line(error)}"), "fail"
            )
        return self.unhandled(error)

    def unrecorded(self, fault: Exception) -> DeliveryOutcome:
        """Return how a delivery ends whose end was not recorded: not counted, the lease stays."""
        self._faults.log_fault(fault)
        return DeliveryOutcome(Retry(DATABASE_DOWN_SECONDS, counts=False), None)


class _Times:
    """How often something happened to the messages to which it happened last.

    Invariant: it remembers at most `_MESSAGES_MAX`; most of these were consumed long ago.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def more(self, message_id: str) -> int:
        """Count one more time for a message; return the new count."""
        times = self._times[message_id] = self._times.pop(message_id, 0) + 1
        if len(self._times) > _MESSAGES_MAX:
            oldest, *_ = list(self._times)  # a copy: other threads may insert meanwhile
            self.forget(oldest)
        return times

    def forget(self, message_id: str) -> None:
        """Reset the count of a message."""
        self._times.pop(message_id, None)
