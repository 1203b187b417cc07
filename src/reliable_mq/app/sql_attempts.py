"""What attempts do in the database, in parts that a handler's call stands between.

One `Attempts` serves one consumer. Its parts take a synchronous session; an asynchronous handler
runs them by `AsyncSession.run_sync`, so that the protocol is written once.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from reliable_mq.app.consumer import Consumer, Reject, Retry
from reliable_mq.app.sql_database import Database, is_database_down
from reliable_mq.client.subscription import CONSUMED, Dead, Later, Outcome
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.claim import Step
from reliable_mq.idempotency.redis_leases import Fate
from reliable_mq.idempotency.sql_consume_log import Entry, SqlConsumeLog
from reliable_mq.message import ReceivedMessage
from reliable_mq.resend.sql_confirmation import SqlConfirmation
from reliable_mq.resend.sql_settlement import SqlSettlement

log = logging.getLogger(__name__)

DATABASE_DOWN_SECONDS = 1.0


class ClaimLost(Exception):
    """Somebody else took the claim over; this attempt's effect must not be committed."""


class Attempt(msgspec.Struct, frozen=True):
    """One run of a handler. `receipt`: its RECEIVED row is committed before the handler runs."""

    entry: Entry
    message: ReceivedMessage
    payload: Any
    receipt: bool


class Settled(msgspec.Struct, frozen=True):
    """How a delivery ended: for the client, and for the lease in Redis (None: not ours)."""

    outcome: Outcome
    fate: Fate | None = None


DONE = Settled(CONSUMED, "done")
Results = dict[str, Settled]


def tell_suppressed(entry: Entry) -> None:
    """Log that a delivery had its effect before: the message came again for nothing."""
    log.info("group %s: suppressed duplicate of message %s", entry.group, entry.message_id)


def tell_postponed(entry: Entry) -> None:
    """Log that a delivery waits, because another one of the message is being handled."""
    log.info("group %s: postponed delivery of message %s", entry.group, entry.message_id)


class Attempts:
    """The protocol's database part for one consumer.

    Args:
        consumer: whose attempts these are.
        database: where consume log and stubs lie.
        retry_waits: the waits between attempts, seconds.
        count_max: sends of a stub after which a person is told.
    """

    def __init__(
        self,
        consumer: Consumer,
        database: Database,
        *,
        retry_waits: Sequence[float],
        count_max: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.consumer = consumer
        self.database = database
        self.log = SqlConsumeLog(database.logs, database.dialect)
        self._confirmation = SqlConfirmation(database.stubs, database.logs, database.dialect)
        self._settlement = SqlSettlement(database.stubs, database.logs)
        self._retry_waits = retry_waits
        self._count_max = count_max
        self._clock = clock

    def receive(self, attempts: Sequence[Attempt], results: Results) -> list[Attempt]:
        """Commit RECEIVED rows; return the attempts that are ours to run, settle the others."""
        if not attempts:
            return []
        with self.database.engine.begin() as connection:
            entries = [attempt.entry for attempt in attempts]
            answers = self.log.receive(connection, entries, self._clock(), self.consumer.lease)
        ready = []
        for attempt in attempts:
            found = answers[attempt.entry.message_id]
            if found.step is Step.ACKNOWLEDGE:
                tell_suppressed(attempt.entry)
                results[attempt.entry.token] = DONE
            elif found.step is Step.LATER:
                tell_postponed(attempt.entry)
                later = Later(found.wait, counts=False)
                results[attempt.entry.token] = Settled(later, "back")
            elif found.attempt > self.consumer.max_attempts:
                reason = f"{self.consumer.max_attempts} attempts did not finish"
                self.give_up([(attempt.entry, reason)])
                results[attempt.entry.token] = Settled(Dead(reason), "fail")
            else:
                ready.append(_numbered(attempt, found.attempt, found.in_doubt))
        return ready

    def begin(
        self, session: Session, attempts: Sequence[Attempt], results: Results
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Open the effect's transaction; return the attempts to run, and those to receive first.

        A row that says CONSUMED is inserted now: it waits for a rival who has inserted it too.
        """
        if not session.in_transaction():
            session.begin()  # so that a handler that ends it is noticed
        hot = [attempt for attempt in attempts if not attempt.receipt]
        if not hot:
            return list(attempts), []
        connection, now = session.connection(), self._clock()
        entries = [attempt.entry for attempt in hot]
        inserted = self.log.insert_consumed(connection, entries, now)
        if len(inserted) == len(hot):
            return list(attempts), []
        there = [attempt for attempt in hot if attempt.entry.message_id not in inserted]
        rows = self.log.found(connection, [attempt.entry for attempt in there], now)
        conflicts = []
        for attempt in there:
            found = rows.get(attempt.entry.message_id)
            if found is not None and found.step is Step.ACKNOWLEDGE:
                tell_suppressed(attempt.entry)
                results[attempt.entry.token] = DONE
            elif found is not None and found.step is Step.LATER:
                tell_postponed(attempt.entry)
                later = Later(found.wait, counts=False)
                results[attempt.entry.token] = Settled(later, "back")
            else:
                conflicts.append(msgspec.structs.replace(attempt, receipt=True))
        ready = [a for a in attempts if a.receipt or a.entry.message_id in inserted]
        return ready, conflicts

    def finish(self, session: Session, attempt: Attempt) -> None:
        """Write the effect, and turn a RECEIVED row into CONSUMED if it is still ours.

        Raises:
            ClaimLost: when it is not; the effect must be rolled back.
        """
        session.flush()
        if attempt.receipt and not self.log.consume(
            session.connection(), attempt.entry, self._clock()
        ):
            raise ClaimLost

    def commit(self, session: Session, attempts: Sequence[Attempt]) -> None:
        """Confirm the stubs that lie in this database, and commit everything at once."""
        if attempts:
            ids = sorted(attempt.entry.message_id for attempt in attempts)
            group = self.consumer.group
            self._confirmation.confirm(session.connection(), group, ids, self._clock())
        session.commit()

    def fail_inside(self, session: Session, attempt: Attempt, error: Exception) -> Settled:
        """Record a failed attempt within the transaction of its neighbours."""
        settled, retry_at = self._judge(attempt, error)
        if settled.fate == "fail":
            connection = session.connection()
            if attempt.receipt:
                self.log.fail(connection, [attempt.entry], self._clock(), [retry_at])
            else:
                self.log.undo(connection, attempt.entry, retry_at)
            if isinstance(settled.outcome, Dead):
                self._settlement.exhaust(
                    connection,
                    attempt.entry.message_id,
                    self._note(settled.outcome.reason),
                    self._count_max,
                    self._clock(),
                )
        elif not attempt.receipt:
            self.log.remove(session.connection(), attempt.entry)
        return settled

    def fail(self, attempt: Attempt, error: Exception) -> Settled:
        """Record a failed attempt whose transaction was rolled back; never raises."""
        settled, retry_at = self._judge(attempt, error)
        if settled.fate != "fail":
            return settled
        try:
            if isinstance(settled.outcome, Dead):
                self.give_up([(attempt.entry, settled.outcome.reason)])
            else:
                with self.database.engine.begin() as connection:
                    self.log.fail(connection, [attempt.entry], self._clock(), [retry_at])
        except Exception as fault:
            # Not recorded means not counted: the lease keeps the attempt until it passes.
            if not is_database_down(fault):
                log.exception("group %s: an attempt was not recorded", self.consumer.group)
            return Settled(Later(DATABASE_DOWN_SECONDS, counts=False), None)
        return settled

    def give_up(self, dead: Sequence[tuple[Entry, str]]) -> None:
        """Record that these messages become dead letters, and let a person be told."""
        now = self._clock()
        with self.database.engine.begin() as connection:
            for entry, reason in sorted(dead, key=lambda each: each[0].message_id):
                self.log.fail(connection, [entry], now, [now])
                self._settlement.exhaust(
                    connection, entry.message_id, self._note(reason), self._count_max, now
                )

    def unhandled(self, error: Exception) -> Settled:
        """Return how a delivery ends whose handler was never called."""
        if not is_database_down(error):
            log.error("group %s: %s", self.consumer.group, error, exc_info=error)
        return Settled(Later(DATABASE_DOWN_SECONDS, counts=False), "back")

    def renew(self, attempts: Sequence[Attempt]) -> None:
        """Let the leases of running attempts with a RECEIVED row end later."""
        with self.database.engine.begin() as connection:
            entries = [attempt.entry for attempt in attempts]
            self.log.renew(connection, entries, self._clock() + self.consumer.lease)

    def _judge(self, attempt: Attempt, error: Exception) -> tuple[Settled, float]:
        """Return how a failed attempt ends, and when its next one is expected."""
        number, now = attempt.entry.attempt, self._clock()
        wait = self._retry_waits[min(number, len(self._retry_waits)) - 1]
        if isinstance(error, ClaimLost):
            return Settled(Later(wait, counts=False)), now
        if isinstance(error, Reject):
            return Settled(Dead(error.reason), "fail"), now
        if is_database_down(error):
            return Settled(Later(DATABASE_DOWN_SECONDS, counts=False), "back"), now
        if isinstance(error, Retry):
            wait = wait if error.after is None else error.after
            why = "asked for it"
        else:
            why = f"{type(error).__name__}: {error}"
        if number >= self.consumer.max_attempts:
            reason = f"attempt {number} of {self.consumer.max_attempts} failed: {why}"
            return Settled(Dead(reason), "fail"), now
        if not isinstance(error, Retry):
            log.warning(
                "group %s: attempt %d at message %s failed, again in %g s: %s",
                *(self.consumer.group, number, attempt.entry.message_id, wait, why),
                exc_info=None if isinstance(error, UsageError) else error,
            )
        return Settled(Later(wait), "fail"), now + wait

    def _note(self, reason: str) -> str:
        return f"dead letter of {self.consumer.group}: {reason}"


def _numbered(attempt: Attempt, number: int, in_doubt: bool) -> Attempt:
    """Return the attempt with its number, and its message told what is known of earlier ones."""
    message = attempt.message
    if in_doubt or number > 1:
        message = msgspec.structs.replace(
            message,
            in_doubt=message.in_doubt or in_doubt,
            reconsume_times=max(message.reconsume_times, number - 1),
        )
    entry = msgspec.structs.replace(attempt.entry, attempt=number)
    return msgspec.structs.replace(attempt, entry=entry, message=message)
