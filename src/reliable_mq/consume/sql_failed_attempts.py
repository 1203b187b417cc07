"""What is recorded of attempts that had no effect: failed, given up, not written.

An attempt is judged by `retry_decider`; this writes the judgement into the consume log, and settles
stubs whose messages became dead letters.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from reliable_mq.confirm.sql_telling import GroupNotices, NoticeInbox
from reliable_mq.consume.consumer import Consumer
from reliable_mq.consume.retry_decider import (
    DATABASE_DOWN_SECONDS,
    DONE,
    PUT_OFF,
    DeliveryOutcome,
    RetryDecider,
)
from reliable_mq.consume.sql_receipts import (
    Attempt,
    SuppressedLines,
    log_postponed,
)
from reliable_mq.database.attempt_list import AttemptEnd
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_database_down, is_row_refused
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.lease_store import LeaseEnd
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup, SqlConsumeLog
from reliable_mq.idempotency.sql_key_log import SqlKeyLog
from reliable_mq.outcomes import Reject, retry_of_ours


class FailedAttempts:
    """Writes down the attempts of one consumer that had no effect.

    Args:
        consumer: the consumer of these attempts.
        database: the database of consume log and stubs.
        retry_waits: the waits between attempts, in seconds.
        notices: sends notices to other databases of stubs.
    """

    def __init__(
        self,
        consumer: Consumer,
        database: Database,
        retry_waits: Sequence[float],
        notices: NoticeInbox | None,
    ) -> None:
        self.consumer = consumer
        self.database = database
        self.log = SqlConsumeLog(database.logs, database.dialect)
        self.keys = SqlKeyLog(database.keys, database.logs, database.dialect)
        self.notices = GroupNotices(consumer.group, database, notices)
        self.suppressed = SuppressedLines()
        self._settlement = settlement_of(database)
        self._judge = RetryDecider(consumer, retry_waits)
        self._clock = database.clock.now

    def acknowledge(self, entry: LogEntry) -> DeliveryOutcome:
        """Settle a delivery whose row says CONSUMED."""
        self.suppressed.log(entry)
        self.notices.consumed([entry])
        return DONE

    def fail_inside(self, session: Session, attempt: Attempt, error: Exception) -> DeliveryOutcome:
        """Record a failed attempt after its savepoint's rollback, in the shared transaction."""
        settled = self._judge.decide_failure(attempt, error)
        return self._record(session.connection(), self._judge.as_last_one(attempt, error), settled)

    def fail(self, attempt: Attempt, error: Exception) -> DeliveryOutcome:
        """Record a failed attempt after its transaction's rollback; never raises."""
        settled = self._judge.decide_failure(attempt, error)
        has_nothing = settled.lease_end == "back" and not attempt.receipt and not settled.why
        if settled.lease_end is None or has_nothing:
            return settled  # not ours to record, or nothing to record
        try:
            return self._record_apart(attempt, error, settled)
        except Exception as fault:  # noqa: BLE001 - told there
            is_away = settled.lease_end == "back" and is_database_down(fault)
            return settled if is_away else self._judge.unrecorded(fault)

    def _record_apart(
        self, attempt: Attempt, error: Exception, settled: DeliveryOutcome
    ) -> DeliveryOutcome:
        """Record a failed attempt in a transaction of its own.

        A database in LATIN1 refuses a reason with other characters. An attempt that is never
        recorded would be repeated without end, so its reason is then written in ASCII.
        """
        attempt = self._judge.as_last_one(attempt, error)
        try:
            with self.database.engine.begin() as connection:
                return self._record(connection, attempt, settled)
        except Exception as fault:
            if not is_row_refused(fault) or settled.in_ascii == settled:
                raise
        with self.database.engine.begin() as connection:
            return self._record(connection, attempt, settled.in_ascii)

    def use_up(self, attempt: Attempt) -> DeliveryOutcome | None:
        """Give a message up whose claims are used up, if its row says the same; never raises.

        None: the row counted fewer attempts, and now has the last one, which the caller must make.
        It must be made alone, because it follows attempts that were claimed and vanished.
        """
        entry = attempt.entry
        try:
            with self.database.engine.begin() as connection:
                now = self._clock()
                found = self.log.found(connection, entry, now)
                if attempt.alone:
                    received = self.log.receive(connection, [entry], now, self.consumer.lease)
                    found = received[entry.message_id]
        except Exception as fault:  # noqa: BLE001 - logged there
            return self._unwritten_or_unrecorded(attempt, fault)
        found = found or LogLookup(ClaimStep.RECEIVE_FIRST, entry.attempt)
        if found.step is ClaimStep.RECEIVE_FIRST and found.attempt <= self.consumer.max_attempts:
            return None if attempt.alone else PUT_OFF
        return self.give_up(attempt)

    def give_up(self, attempt: Attempt, reason: str = "") -> DeliveryOutcome:
        """Make a message a dead letter without an attempt, unless its row forbids it; never raises.

        The row is read first: the message may have had its effect long ago, or be running now.
        Without a `reason`, its attempts are used up. Then the reason of the last attempt is used,
        if there is one: this may be a copy of a message that was given up before.
        """
        entry = attempt.entry
        try:
            with self.database.engine.begin() as connection:
                now = self._clock()
                found = self.log.receive(connection, [entry], now, self.consumer.lease)
                if attempt.key is not None:  # if it is ours, other messages of it need not wait
                    self.keys.release(connection, attempt.key, now)
                step = found[entry.message_id].step
                if step is ClaimStep.RECEIVE_FIRST:
                    unfinished = f"{self.consumer.max_attempts} attempts did not finish"
                    why = reason or self.log.last_reason(connection, entry) or unfinished
                    given_up = DeliveryOutcome(Reject(why), "fail", end=AttemptEnd.GIVEN_UP)
                    return self._fail(connection, entry, given_up)
                return self._others(connection, entry, "back")
        except Exception as fault:  # noqa: BLE001 - logged there
            return self._unwritten_or_unrecorded(attempt, fault)

    def _unwritten_or_unrecorded(self, attempt: Attempt, fault: Exception) -> DeliveryOutcome:
        if is_row_refused(fault):
            return self.unwritten(attempt, fault)
        return self._judge.unrecorded(fault)

    def unwritten(self, attempt: Attempt, error: Exception) -> DeliveryOutcome:
        """Return how a delivery ends if no row can be written for it; never raises.

        A dead letter is escalated here, since no row can inform another database about it.
        """
        entry, settled = attempt.entry, self._judge.unwritten(attempt.entry.message_id, error)
        if isinstance(settled.outcome, Reject):
            try:
                with self.database.engine.begin() as connection:
                    self._exhaust(connection, entry, settled.outcome.reason, self._clock())
            except Exception as fault:  # noqa: BLE001 - logged there
                return self._judge.unrecorded(fault)
        return settled

    def _record(
        self, connection: Connection, attempt: Attempt, settled: DeliveryOutcome
    ) -> DeliveryOutcome:
        """Record the end of an attempt without an effect.

        An attempt that does not count leaves a row only for its reason.
        """
        retry_at = settled.next_at(self._clock())
        if attempt.key is not None and attempt.receipt:
            self.keys.release(connection, attempt.key, retry_at)
        if settled.lease_end == "back" and attempt.receipt:
            self.log.release(connection, attempt.entry, retry_at)
        if settled.lease_end == "back" and settled.why:
            self.log.explain(connection, attempt.entry, self._clock(), retry_at, settled.why)
        if settled.lease_end != "fail":
            return settled
        return self._fail(connection, attempt.entry, settled)

    def _fail(
        self, connection: Connection, entry: LogEntry, settled: DeliveryOutcome
    ) -> DeliveryOutcome:
        """Record a failure if the claim is still ours; otherwise return what its row says."""
        now = self._clock()
        reason = ""
        if isinstance(settled.outcome, Reject):
            reason = settled.outcome.reason or "no reason given"
        why: dict[str, Any] = {"note": reason, "failure": settled.why or reason, "end": settled.end}
        if not self.log.fail(connection, entry, now, settled.next_at(now), **why):
            return self._others(connection, entry, "fail")
        if reason and not entry.confirm_to:  # otherwise the stub's own database escalates it
            self._exhaust(connection, entry, reason, now)
        self.notices.report_failure(entry)
        return settled

    def _exhaust(self, connection: Connection, entry: LogEntry, reason: str, now: float) -> None:
        group, topic = entry.group, entry.topic
        self._settlement.exhaust(
            connection, entry.message_id, group=group, reason=reason, now=now, topic=topic
        )

    def _others(self, connection: Connection, entry: LogEntry, end: LeaseEnd) -> DeliveryOutcome:
        """Return how a delivery ends whose claim another owner has, or had."""
        found = self.log.found(connection, entry, self._clock())
        if found is not None and found.step is ClaimStep.ACKNOWLEDGE:
            return self.acknowledge(entry)
        log_postponed(entry)
        wait = DATABASE_DOWN_SECONDS if found is None or not found.wait else found.wait
        return DeliveryOutcome(retry_of_ours(wait, counts=False), end)
