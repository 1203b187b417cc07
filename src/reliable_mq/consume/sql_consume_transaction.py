"""The database part of attempts, in steps around the handler's call.

One `ConsumeTransaction` serves one consumer. Its steps take a synchronous session. An asynchronous
handler runs them by `AsyncSession.run_sync`, so that the protocol is written once.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.confirm.sql_confirmation import HeldConfirmation, StoredCopy, confirmation_of
from reliable_mq.confirm.sql_telling import NoticeInbox
from reliable_mq.consume.consumer import Consumer
from reliable_mq.consume.observed_handlers import hooks_of_handlers
from reliable_mq.consume.retry_decider import (
    PUT_OFF,
    ClaimLost,
    DeliveryOutcome,
    Results,
    one_of_each_key,
)
from reliable_mq.consume.shared_run import SharingPolicy
from reliable_mq.consume.sql_failed_attempts import FailedAttempts
from reliable_mq.consume.sql_receipts import (
    Attempt,
    SqlReceipts,
    log_duplicate,
    log_postponed,
    numbered,
)
from reliable_mq.database.sql_chained_commits import can_chain
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog, is_row_refused
from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.database.sql_libpq import hold
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup
from reliable_mq.outcomes import retry_of_ours

log = logging.getLogger(__name__)


class AttemptStart(Enum):
    """The next step after an attempt was begun in the handler's transaction."""

    RUN = "run"  # call the handler
    SKIP = "skip"  # its effect exists, by its business key or since long: commit the notes
    RECEIVE = "receive"  # nothing is ours yet: roll back, and receive it first
    SETTLED = "settled"  # roll back; its outcome is known


class ConsumeTransaction(FailedAttempts):
    """The protocol's database part for one consumer.

    Args:
        consumer: the consumer of these attempts.
        database: the database of consume log and stubs.
        retry_waits: the waits between attempts, in seconds.
        notices: sends notices to other databases of stubs.
        hooks: called around each call of the handler.
    """

    def __init__(
        self,
        consumer: Consumer,
        database: Database,
        *,
        retry_waits: Sequence[float],
        notices: NoticeInbox | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(consumer, database, retry_waits, notices)
        self.hooks = hooks or hooks_of_handlers((), ClientIdentity())
        self._confirmation = confirmation_of(database)
        self._receipts = SqlReceipts(consumer, self.log, self.keys, self._confirmation)
        self.wait_after = self._judge.wait_after
        self.unhandled = self._judge.unhandled
        self.sharing = SharingPolicy()
        self._faults = FaultLog(log, f"group {consumer.group}: a lease may expire")
        self._late = FaultLog(log, f"group {consumer.group}: a stub is confirmed later")
        self._holding: dict[str, Attempt] = {}  # by token: its RECEIVED row is committed

    def receive(
        self, attempts: Sequence[Attempt], results: Results, singly: list[Attempt]
    ) -> list[Attempt]:
        """Commit RECEIVED rows; return the attempts that are ours to run, settle the others.

        Attempts that may have killed their process are put into `singly`, the least tried first.
        The caller must receive them one by one, so that they cost no other message an attempt.
        """
        attempts = one_of_each_key(attempts, results) if len(attempts) > 1 else attempts
        if not attempts:
            return []
        try:
            with self.database.engine.begin() as connection:
                received, forgotten = self._receive_in(connection, attempts, self._clock())
        except Exception as error:
            if not is_row_refused(error):
                raise
            taken = self._without_refused(attempts, results)
            if len(taken) == len(attempts):
                raise
            return self.receive(taken, results, singly)
        results.update((each.entry.token, self.acknowledge(each.entry)) for each in forgotten)
        ready: list[Attempt] = []
        for attempt, found in received:
            if found.step is ClaimStep.RECEIVE_FIRST and found.attempt > self.consumer.max_attempts:
                results[attempt.entry.token] = self.give_up(attempt)
            elif found.step in (ClaimStep.RECEIVE_FIRST, ClaimStep.SINGLY):
                is_new = found.attempt == attempt.entry.attempt == 1 and not found.in_doubt
                mine = attempt if is_new else numbered(attempt, found.attempt, found.in_doubt)
                if found.step is ClaimStep.SINGLY:
                    singly.append(mine)
                else:
                    ready.append(mine)
                    self._holding[mine.entry.token] = mine
            elif found.step is ClaimStep.ALONE:
                results[attempt.entry.token] = PUT_OFF
            else:
                self._settle(attempt.entry, found, results)
        singly.sort(key=lambda each: each.entry.attempt)
        return ready

    def _receive_in(
        self, connection: Connection, attempts: Sequence[Attempt], now: float
    ) -> tuple[list[tuple[Attempt, LogLookup]], list[Attempt]]:
        """Write RECEIVED rows; return the lookups, and attempts whose row retention removed.

        After an attempt that vanished, the last allowed attempt is begun only if its handler runs
        alone. A message that always dies with its neighbours must not count as the culprit.
        """
        others, forgotten = attempts, []
        if any(each.entry.confirm_to for each in attempts):  # their stubs are elsewhere
            self.notices.reset_attempts(
                connection, [(each.entry, each.message) for each in attempts]
            )
            forgotten = [each for each in attempts if self._is_forgotten(connection, each, now)]
            others = [each for each in attempts if each not in forgotten]
        if not others:
            return [], forgotten
        lease, last = self.consumer.lease, self.consumer.max_attempts
        entries = [attempt.entry for attempt in others]
        ids = [entry.message_id for entry in entries]
        is_alone = any(attempt.alone for attempt in others)
        found = self.log.receive(connection, entries, now, lease, 0 if is_alone else last)
        if self.consumer.read_key is not None:
            self._receipts.receive(connection, others, found, now)
        return list(zip(others, map(found.__getitem__, ids), strict=True)), forgotten

    def _without_refused(self, attempts: Sequence[Attempt], results: Results) -> list[Attempt]:
        """Settle the attempts whose row the database refuses; return the others.

        Each is tried alone and rolled back, so that it does not affect the others.
        """
        taken = []
        for each in attempts:
            try:
                with self.database.engine.connect() as connection:
                    self._receive_in(connection, [each], self._clock())
            except Exception as error:  # noqa: BLE001 - `unwritten` handles it
                results[each.entry.token] = self.unwritten(each, error)
            else:
                taken.append(each)
        return taken

    def _is_forgotten(self, connection: Connection, attempt: Attempt, now: float) -> bool:
        """Insert again a row that retention has removed; see `GroupNotices.is_forgotten`."""
        return self.notices.is_forgotten(
            connection, attempt.entry, attempt.message
        ) and self.log.insert_consumed(connection, attempt.entry, now)

    def begin(self, session: Session, attempt: Attempt, results: Results) -> AttemptStart:
        """Begin an attempt directly before its handler; return the next step.

        The CONSUMED rows of the message and of its business key are inserted now, in the handler's
        transaction or savepoint. The insert waits for an open transaction with the same key.
        """
        if not session.in_transaction():
            session.begin()
        if attempt.receipt:
            return AttemptStart.RUN  # without a connection: the handler may be long and need none
        connection, now, entry = session.connection(), self._clock(), attempt.entry
        if not self.log.insert_consumed(connection, entry, now):
            return self._not_ours(entry, self.log.found(connection, entry, now), results)
        if self.notices.is_forgotten(connection, entry, attempt.message):
            self.suppressed.log(entry)
            return AttemptStart.SKIP
        if attempt.key is None or self.keys.insert_consumed(connection, attempt.key, now):
            return AttemptStart.RUN
        found = self.keys.found(connection, attempt.key, now)
        if found is not None and found.step is ClaimStep.ACKNOWLEDGE:
            log_duplicate(entry, found.message_id)
            self.keys.note_duplicate(connection, entry, found.message_id)
            return AttemptStart.SKIP
        return self._not_ours(entry, found, results)

    def _not_ours(self, entry: LogEntry, found: LogLookup | None, results: Results) -> AttemptStart:
        """Return the next step when another row exists in place of ours."""
        if found is None or found.step is ClaimStep.RECEIVE_FIRST:
            return AttemptStart.RECEIVE
        self._settle(entry, found, results)
        return AttemptStart.SETTLED

    def _settle(self, entry: LogEntry, found: LogLookup, results: Results) -> None:
        """Settle a delivery that another owner has handled, or is handling."""
        if found.step is ClaimStep.ACKNOWLEDGE:
            results[entry.token] = self.acknowledge(entry)
        else:
            log_postponed(entry)
            results[entry.token] = DeliveryOutcome(retry_of_ours(found.wait, counts=False), "back")

    def begin_many(self, session: Session, attempts: Sequence[Attempt]) -> bool:
        """Begin first attempts in one transaction; False: some are not first attempts.

        Either all commit, or all are rolled back and run one by one.
        """
        if not session.in_transaction():
            session.begin()
        entries = [attempt.entry for attempt in attempts]
        keys = {each.key.message_id: each.key for each in attempts if each.key is not None}
        if keys and len(keys) < len(attempts):
            return False  # two have the same business key
        connection, now = session.connection(), self._clock()
        if any(self.notices.is_forgotten(connection, e.entry, e.message) for e in attempts):
            return False
        return self.log.insert_all_consumed(connection, entries, now) and (
            not keys or self.keys.insert_all_consumed(connection, list(keys.values()), now)
        )

    def finish(self, session: Session, attempt: Attempt) -> float:
        """Flush the effect, and turn our RECEIVED rows into CONSUMED; return the time in them.

        Raises:
            ClaimLost: a row is no longer ours; the caller must roll back.
        """
        session.flush()
        if not attempt.receipt:
            return self._clock()
        self.end_renewal(attempt.entry.token)  # a renewal of its row would now wait for our commit
        connection, now = session.connection(), self._clock()
        if not self.log.consume(connection, attempt.entry, now):
            raise ClaimLost
        if attempt.key is not None and not self.keys.consume(connection, attempt.key, now):
            raise ClaimLost
        return now

    def complete(
        self, session: HandlerSession, attempt: Attempt, has_run: bool, begins_next: bool = False
    ) -> None:
        """Finish the only attempt of a transaction if it has run, and commit; see `commit`."""
        now = self.finish(session, attempt) if has_run else self._clock()
        entry, connection = attempt.entry, session.connection()
        positions = _positions_of([attempt])
        confirms = held = None
        if self._confirmation.is_usual:
            confirms = self._confirmation.with_commit(
                connection, entry.group, entry.message_id, now, positions.get(entry.message_id)
            )
        if confirms is None:
            self._confirm(connection, entry, now, positions)
        else:
            held = HeldConfirmation(confirms, begins_next and can_chain(connection.dialect))
            hold(connection, held)
        if begins_next:
            session.commit_and_begin()
        else:
            session.commit()
        if held is not None and not held.changed:
            self._confirm_late(entry, positions)
        if entry.confirm_to:
            self.notices.consumed([entry])

    def _confirm(
        self,
        connection: Connection,
        entry: LogEntry,
        now: float,
        positions: Mapping[str, StoredCopy],
    ) -> None:
        self._confirmation.confirm(connection, entry.group, [entry.message_id], now, positions)

    def _confirm_late(self, entry: LogEntry, positions: Mapping[str, StoredCopy]) -> None:
        """Confirm a stub after the COMMIT; never raises: else a scheduler confirms it."""
        try:
            with self.database.engine.begin() as connection:
                self._confirm(connection, entry, self._clock(), positions)
        except Exception as fault:  # noqa: BLE001 - logged
            self._late.log_fault(fault)

    def commit(self, session: Session, attempts: Sequence[Attempt]) -> None:
        """Confirm the stubs in this database, and commit everything at once."""
        if attempts:
            ids = sorted(attempt.entry.message_id for attempt in attempts)
            group, positions = self.consumer.group, _positions_of(attempts)
            self._confirmation.confirm(session.connection(), group, ids, self._clock(), positions)
        session.commit()
        self.notices.consumed([attempt.entry for attempt in attempts])

    def renew(self, tokens: Collection[str]) -> None:
        """Extend the leases of running attempts with a RECEIVED row; never raises.

        Only the receipt shows whether an attempt has such a row: a retry may get it while running.
        """
        holding = [each for each in map(self._holding.get, tokens) if each is not None]
        if not holding:
            return
        until = self._clock() + self.consumer.lease
        keys = [attempt.key for attempt in holding if attempt.key is not None]
        try:
            with self.database.engine.begin() as connection:
                self.log.renew(connection, [attempt.entry for attempt in holding], until)
                if keys:
                    self.keys.renew(connection, keys, until)
        except Exception as fault:  # noqa: BLE001 - logged, and tried again soon
            self._faults.log_fault(fault)

    def end_renewal(self, token: str) -> None:
        """Stop renewing the lease of an attempt: it has ended, or ends with its transaction."""
        self._holding.pop(token, None)


def _positions_of(attempts: Sequence[Attempt]) -> dict[str, StoredCopy]:
    """Return where these messages are stored in their topic, by id; a copy in another is left out.

    A copy for another attempt lies in a topic of the consumer group.
    """
    return {
        each.entry.message_id: StoredCopy(
            *(each.message.topic, each.entry.broker_name, each.entry.queue_id, each.entry.offset)
        )
        for each in attempts
        if each.message.queue.topic == each.message.topic
    }
