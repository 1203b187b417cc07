"""The statements on business keys: a consume log by key instead of by message.

Table `<prefix>business_key`, see `sql_key_tables`. The owner of a key's row decides about the
effect of all messages with that key. A second message with the key is noted in the consume log as
a duplicate of the first.
"""

from typing import Any, cast

from sqlalchemy import Connection, Table, and_, bindparam, update

from reliable_mq.database.row_values import LogState
from reliable_mq.idempotency.sql_consume_log import LogEntry, SqlConsumeLog


class KeyEntry(LogEntry, frozen=True, kw_only=True):
    """One delivery in the table of keys: here `message_id` is the key's digest.

    `holder` is the message; `shown` the key in readable form.
    """

    holder: str
    shown: str


class SqlKeyLog(SqlConsumeLog):
    """The business keys of one database. All methods work in the caller's transaction."""

    identity = "key_digest"
    told_of_failure = ()  # the key of a failed message is released

    def __init__(self, table: Table, logs: Table, dialect: str) -> None:
        super().__init__(table, dialect)
        self._note_duplicate = (
            update(logs)
            .where(
                and_(
                    logs.c.consumer_group == bindparam("group"),
                    logs.c.message_id == bindparam("message"),
                    logs.c.state == LogState.CONSUMED.value,
                )
            )
            .values(duplicate_of=bindparam("had_it"))
        )

    def note_duplicate(self, connection: Connection, entry: LogEntry, message_id: str) -> None:
        """Note in a message's consume log (CONSUMED) which message had the effect."""
        values = {"group": entry.group, "message": entry.message_id, "had_it": message_id}
        connection.execute(self._note_duplicate, values)

    def _explaining(self, *_rows: Any) -> Any:
        return None  # reasons are kept with messages, not with keys

    def _noting_the_lost(self, taking_over: Any) -> Any:
        return taking_over  # attempts are listed with messages, too

    def _taking_over(self) -> dict[str, Any]:
        return {"message_id": bindparam("holder")}

    def _taker(self, entry: LogEntry) -> dict[str, Any]:
        return {"holder": cast("KeyEntry", entry).holder}

    def _consuming(self) -> dict[str, Any]:
        return {}  # notices are about messages, not about keys

    def _consumer(self, _entry: LogEntry, _now: float) -> dict[str, Any]:
        return {}

    def _row(
        self, entry: LogEntry, state: LogState, now: float, owner: str | None
    ) -> dict[str, Any]:
        row = super()._row(entry, state, now, owner)
        for name in ("topic", "broker_name", "queue_id", "offset"):  # these belong to the message
            del row[name]
        key = cast("KeyEntry", entry)
        return row | {
            "key_digest": key.message_id,
            "message_id": key.holder,
            "business_key": key.shown,
        }
