"""Attempts that begin with a receipt: a RECEIVED row, committed before the handler runs.

If the consumer has business keys, a message needs two rows: its own and that of its key. It gets
both or none. Receives attempts with the rows of their messages; returns which are ours.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine

from reliable_mq.confirm.sql_confirmation import SqlConfirmation
from reliable_mq.consume.consumer import Consumer
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup, SqlConsumeLog
from reliable_mq.idempotency.sql_key_log import KeyEntry, SqlKeyLog
from reliable_mq.message import ReceivedMessage
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.message_facts import NO_KEY
from reliable_mq.telemetry.outages import FaultRate

log = logging.getLogger(__name__)


class Attempt(msgspec.Struct, frozen=True):
    """One run of a handler. `receipt`: its RECEIVED row is committed before the handler runs.

    `key`: its entry for the table of business keys; None: the consumer has none. `alone`: no other
    handler of this process runs at the same time.
    """

    entry: LogEntry
    message: ReceivedMessage
    payload: Any
    receipt: bool
    key: KeyEntry | None = None
    alone: bool = False


def numbered(attempt: Attempt, number: int, in_doubt: bool) -> Attempt:
    """Return the attempt with its number; its message gets the facts about earlier attempts."""
    message = attempt.message
    if in_doubt or number > 1:
        message = msgspec.structs.replace(
            message,
            in_doubt=message.in_doubt or in_doubt,
            reconsume_times=max(message.reconsume_times, number - 1),
        )
    in_doubt = in_doubt or attempt.entry.in_doubt
    entry = msgspec.structs.replace(attempt.entry, attempt=number, in_doubt=in_doubt)
    return msgspec.structs.replace(attempt, entry=entry, message=message)


class SuppressedLines:
    """The lines about suppressed deliveries: after a restart there are many.

    Invariant: at most one a minute, with the number of those that were not written.
    """

    def __init__(self) -> None:
        self._rate = FaultRate()

    def log(self, entry: LogEntry) -> None:
        """Log that a delivery was suppressed: its message already had its effect."""
        unsaid = self._rate.count_fault(entry.group, time.monotonic())
        if unsaid is not None:
            application_events.DUPLICATE_SUPPRESSED.log(log, **_facts(entry), unsaid=unsaid)


def log_postponed(entry: LogEntry) -> None:
    """Log that a delivery waits, because another delivery of the message is being handled."""
    application_events.DELIVERY_POSTPONED.log(log, **_facts(entry))


def log_duplicate(entry: LogEntry, message_id: str) -> None:
    """Log that a message had no effect, because another one with its business key had it."""
    application_events.DUPLICATE_KEY.log(log, **_facts(entry), first_message_id=message_id)


def _facts(entry: LogEntry) -> dict[str, Any]:
    return {
        "group": entry.group,
        "message_id": entry.message_id,
        "key": entry.key or NO_KEY,
        "topic": entry.topic,
    }


def consumed_ids(engine: Engine, log: SqlConsumeLog, entries: Sequence[LogEntry]) -> set[str]:
    """Return the ids of these messages that have had their effect, by their committed rows."""
    with engine.connect() as connection:
        return log.consumed(connection, entries)


class SqlReceipts:
    """Begins attempts of messages with business keys, in the caller's transaction.

    Args:
        consumer: the consumer of these attempts.
        messages: the consume log.
        keys: the business keys.
        confirmation: confirms the stub of a message that turns out to be a duplicate.
    """

    def __init__(
        self,
        consumer: Consumer,
        messages: SqlConsumeLog,
        keys: SqlKeyLog,
        confirmation: SqlConfirmation,
    ) -> None:
        self._consumer = consumer
        self._messages = messages
        self._keys = keys
        self._confirmation = confirmation

    def receive(
        self,
        connection: Connection,
        attempts: Sequence[Attempt],
        found: dict[str, LogLookup],
        now: float,
    ) -> None:
        """Write the RECEIVED rows of the keys.

        Args:
            connection: in the transaction that wrote the messages' own rows.
            attempts: the attempts to begin.
            found: what the messages' own rows say, by message id. It is changed where the row of a
                key says otherwise.
            now: the time for the rows.
        """
        wanted = [
            attempt.key
            for attempt in attempts
            if attempt.key is not None
            and found[attempt.entry.message_id].step is ClaimStep.RECEIVE_FIRST
        ]
        if not wanted:
            return
        by_key = self._keys.receive(connection, wanted, now, self._consumer.lease)
        for attempt in attempts:
            message_id = attempt.entry.message_id
            of_message = found[message_id]
            if attempt.key is not None and of_message.step is ClaimStep.RECEIVE_FIRST:
                of_key = by_key[attempt.key.message_id]
                both = self._both(connection, attempt.entry, of_message, of_key, now)
                found[message_id] = both

    def _both(
        self,
        connection: Connection,
        entry: LogEntry,
        of_message: LogLookup,
        of_key: LogLookup,
        now: float,
    ) -> LogLookup:
        """Return what a message's row and its key's row say together; undo our row if needed."""
        in_doubt = of_message.in_doubt or of_key.in_doubt
        if of_key.step is ClaimStep.RECEIVE_FIRST:
            return msgspec.structs.replace(of_message, in_doubt=in_doubt)
        if of_key.step is ClaimStep.ACKNOWLEDGE:
            log_duplicate(entry, of_key.message_id)
            self._messages.consume(connection, entry, now)
            self._keys.note_duplicate(connection, entry, of_key.message_id)
            ids = [entry.message_id]
            self._confirmation.confirm(connection, self._consumer.group, ids, now)
        else:
            self._messages.release(connection, entry, now + of_key.wait)
        return msgspec.structs.replace(of_message, step=of_key.step, wait=of_key.wait)
