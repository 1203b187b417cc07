"""A consumer group's notices to the databases of its messages' stubs, if these are others.

Receives deliveries and their ends. Hands committed notices to their sender. The consume log itself
records each debt (`sql_owed_notices`): this only saves the time until the next search.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, func, select

from reliable_mq.confirm.sql_owed_notices import OwedNotice, SqlNotices, owed_of
from reliable_mq.database.sql_database import Database
from reliable_mq.idempotency.sql_consume_log import LogEntry
from reliable_mq.message import (
    RESENT,
    ReceivedMessage,
    notice_topic_of,
    written_before_consumed,
)

CLOCKS_APART_SECONDS = 3600.0
"""How far the clocks of two databases may differ, in seconds."""
STUB_ID_LENGTH_MAX = 32
"""A longer message id belongs to no stub, whatever the message's properties say."""


class NoticeInbox(Protocol):
    """Receives notices for other databases, and sends them."""

    def accept_committed(self, owed: Sequence[OwedNotice]) -> None:
        """Accept committed notices; must not wait."""
        ...

    def look_soon(self) -> None:
        """Search the table soon; must not wait."""
        ...


class GroupNotices:
    """The notices of one consumer group.

    Args:
        group: the consumer group.
        database: the database of its consume log.
        inbox: sends the notices; None: owed notices wait until some process finds them.
    """

    def __init__(self, group: str, database: Database, inbox: NoticeInbox | None) -> None:
        self._group = group
        self._database = database
        self._inbox = inbox
        self._debts = SqlNotices(database.engine, database.logs)
        self._removed = select(func.max(database.retention_duties.c.logs_removed_until))
        #: the beginning of the property `CONFIRM_TO` of messages with a stub in this database.
        #: It is ":", as in messages without a stub, until `address` has read this database's topic.
        self.here = ":"

    def address(self, message: ReceivedMessage) -> str:
        """Return the topic where a stub's database reads notices; "": it is this database."""
        topic = notice_topic_of(message.properties, self._group)
        if not topic or len(message.message_id) > STUB_ID_LENGTH_MAX:
            return ""
        own = self._database.identity.notice_topic()
        self.here = f"{own}:"
        return "" if topic == own else topic

    def consumed(self, entries: Sequence[LogEntry]) -> None:
        """Send the notices of messages whose effect is committed, now or long ago.

        The sender of a resent message may have missed the notice. If the new notice is lost, too,
        the message is sent again.
        """
        owed = [owed_of(entry) for entry in entries if entry.confirm_to]
        if owed and self._inbox is not None:
            self._inbox.accept_committed(owed)

    def report_failure(self, entry: LogEntry) -> None:
        """Report an attempt whose failure is written and will be committed in a moment."""
        if entry.confirm_to and self._inbox is not None:
            self._inbox.look_soon()

    def is_forgotten(
        self, connection: Connection, entry: LogEntry, message: ReceivedMessage
    ) -> bool:
        """Return whether a message had its effect so long ago that its row here was removed.

        A stub in another database keeps no row here (P7). Its database stores the notices it got.
        They are trusted if this database may have removed the row. Otherwise the missing row
        counts, because its commit may have been lost.
        """
        written = written_before_consumed(message.properties, self._group)
        if written is None or not entry.confirm_to or RESENT not in message.properties:
            return False
        removed: datetime | None = connection.execute(self._removed).scalar()
        return removed is not None and written < removed.timestamp() + CLOCKS_APART_SECONDS

    def reset_attempts(
        self, connection: Connection, deliveries: Sequence[tuple[LogEntry, ReceivedMessage]]
    ) -> None:
        """Reset the attempts of messages that were given up and that a person has sent again."""
        again = [
            entry.message_id
            for entry, message in deliveries
            if entry.confirm_to and RESENT in message.properties
        ]
        if again:
            self._debts.reset_attempts(connection, self._group, again)
