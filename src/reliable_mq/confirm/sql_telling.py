"""What a consumer group tells the databases of its messages' stubs, where these are others.

Receives deliveries and how they ended. Hands on what is committed to the sender of notices. The
consume log itself has the debt (`sql_owed_notices`): this only saves the time until the next look.
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
"""How far the clocks of two databases may be apart."""
STUB_ID_LENGTH_MAX = 32
"""A longer message id is none of a stub, whatever the message says of itself."""


class NoticeInbox(Protocol):
    """What takes over what other databases are to be told."""

    def hand(self, owed: Sequence[OwedNotice]) -> None:
        """Take what is committed; must not wait."""
        ...

    def look_soon(self) -> None:
        """Look in the table before long; must not wait."""
        ...


class GroupNotices:
    """The notices of one consumer group.

    Args:
        group: the consumer group.
        database: where its consume log lies.
        inbox: sends; None: what is owed waits for somebody who looks.
    """

    def __init__(self, group: str, database: Database, inbox: NoticeInbox | None) -> None:
        self._group = group
        self._database = database
        self._inbox = inbox
        self._debts = SqlNotices(database.engine, database.logs)
        self._removed = select(func.max(database.retention_duties.c.logs_removed_until))

    def address(self, message: ReceivedMessage) -> str:
        """Return where the database of a message's stub reads notices; "" when that is this one."""
        topic = notice_topic_of(message.properties, self._group)
        if not topic or len(message.message_id) > STUB_ID_LENGTH_MAX:
            return ""
        return "" if topic == self._database.identity.notice_topic() else topic

    def consumed(self, entries: Sequence[LogEntry]) -> None:
        """Tell of messages whose effect is committed, now or long ago.

        Who sent one again may have missed the notice; should it be lost once more, the message
        comes again.
        """
        owed = [owed_of(entry) for entry in entries if entry.confirm_to]
        if owed and self._inbox is not None:
            self._inbox.hand(owed)

    def failed(self, entry: LogEntry) -> None:
        """Tell of an attempt whose failure is written and will be committed in a moment."""
        if entry.confirm_to and self._inbox is not None:
            self._inbox.look_soon()

    def is_forgotten(
        self, connection: Connection, entry: LogEntry, message: ReceivedMessage
    ) -> bool:
        """Say whether a message without a row here had its effect so long ago that its row is gone.

        A stub in another database holds no row here (P7). Its database remembers what it was told,
        and is believed where this one may have removed the row; elsewhere the missing row counts,
        because it may be of a commit that was lost.
        """
        written = written_before_consumed(message.properties, self._group)
        if written is None or not entry.confirm_to or RESENT not in message.properties:
            return False
        removed: datetime | None = connection.execute(self._removed).scalar()
        return removed is not None and written < removed.timestamp() + CLOCKS_APART_SECONDS

    def begin_anew(
        self, connection: Connection, deliveries: Sequence[tuple[LogEntry, ReceivedMessage]]
    ) -> None:
        """Forget the attempts of messages that were given up, and that somebody sent again."""
        again = [
            entry.message_id
            for entry, message in deliveries
            if entry.confirm_to and RESENT in message.properties
        ]
        if again:
            self._debts.begin_anew(connection, self._group, again)
