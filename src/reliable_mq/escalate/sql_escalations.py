"""The SQL statements on escalations. An escalation is committed together with its cause.

Table `<prefix>escalation`, see `sql_people_tables`. When a stub is given to a person, the scheduler
sends it no more. This change and the escalation row are in one transaction. So after a crash there
is either both or neither.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    bindparam,
    literal,
    null,
    select,
    update,
)

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import dialect_family, insert_of, is_among, utc_datetime
from reliable_mq.escalate.escalation import Escalation, EscalationKind, open_key
from reliable_mq.outbox.stub import Stub
from reliable_mq.plain_text import times

_UNCONFIRMED = StubStatus.UNCONFIRMED.value


class SqlEscalations:
    """The escalations of one database. A method with a connection works in its transaction.

    Invariant A1: a stub that nobody sends any more is settled, or its escalation was committed in
    the same transaction.
    """

    def __init__(self, engine: Engine, table: Table, stubs: Table) -> None:
        self.table = table
        self._engine = engine
        dialect = engine.dialect.name
        self._raise = insert_new(dialect, table)
        self._prepare_handing(stubs, dialect)
        self._prepare_closing(dialect)

    def _prepare_handing(self, stubs: Table, dialect: str) -> None:
        stub = stubs.c
        ids = is_among(stub.message_id, "ids", dialect)
        self._ours = (
            select(stub.message_id, stub.note)
            .where(ids, stub.status == _UNCONFIRMED, stub.owner == bindparam("me"))
            .order_by(stub.message_id)
            .with_for_update()
        )
        self._named = select(stub.topic, stub.message_key).where(stub.message_id == bindparam("id"))
        self._hand_to_person = (
            update(stubs)
            .where(ids)
            .values(
                resend_time=null(), owner=null(), lease_until=null(), update_date=bindparam("at")
            )
        )

    def _prepare_closing(self, dialect: str) -> None:
        this = self.table.c
        close = (
            update(self.table)
            .where(this.open_key.is_not(None))
            .values(open_key=null(), close_date=bindparam("at"), close_reason=bindparam("why"))
        )
        self._close = close.where(is_among(this.message_id, "ids", dialect))
        normal = (
            literal(f"{EscalationKind.DEAD_LETTER}/") + this.consumer_group + "/" + this.message_id
        )
        self._letters_retried = (
            update(self.table)
            .where(is_among(this.open_key, "keys", dialect))
            .values(open_key=this.open_key + "/" + bindparam("retry"))
        )
        self._close_letters = close.where(
            is_among(this.message_id, "ids", dialect),
            this.kind == EscalationKind.DEAD_LETTER.value,
            this.consumer_group == bindparam("group"),
            this.open_key != normal,
        )

    def escalate(
        self, connection: Connection, escalations: Sequence[Escalation], now: float
    ) -> None:
        """Insert escalations, except those whose `open_key` is open already."""
        rows = [_row(each, utc_datetime(now)) for each in escalations]
        rows.sort(key=lambda row: str(row["open_key"]))  # one lock order: batches cannot deadlock
        connection.execute(self._raise, rows)

    def dead_letter(
        self,
        connection: Connection,
        *,
        group: str,
        message_id: str,
        topic: str,
        reason: str,
        now: float,
    ) -> None:
        """Insert an escalation: a consumer group gave a message up.

        `topic` is used only if the message has no stub in this database.
        """
        stub = connection.execute(self._named, {"id": message_id}).one_or_none()
        escalation = Escalation(
            kind=EscalationKind.DEAD_LETTER,
            message_id=message_id,
            topic=stub.topic if stub else topic,
            reason=reason,
            consumer_group=group,
            message_key=stub.message_key if stub else "",
        )
        self.escalate(connection, [escalation], now)

    def used_up(self, stubs: Sequence[Stub], owner: str, now: float) -> int:
        """Give stubs that used up their sends to a person; return how many `owner` still owned."""
        ids = {"ids": [stub.message_id for stub in stubs]}
        with self._engine.begin() as connection:
            rows = connection.execute(self._ours, ids | {"me": owner}).all()
            ours: dict[str, str | None] = {row.message_id: row.note for row in rows}
            going = [stub for stub in stubs if stub.message_id in ours]
            if going:
                connection.execute(
                    self._hand_to_person, {"ids": sorted(ours), "at": utc_datetime(now)}
                )
                escalations = [_used_up(stub, ours[stub.message_id]) for stub in going]
                self.escalate(connection, escalations, now)
        return len(going)

    def close(
        self, connection: Connection, message_ids: Sequence[str], why: str, now: float
    ) -> None:
        """Close the open escalations of these messages, because a person acted on them."""
        values = {"ids": list(message_ids), "why": why, "at": utc_datetime(now)}
        connection.execute(self._close, values)

    def free_open_keys(
        self, connection: Connection, message_ids: Sequence[str], group: str, retry_id: str
    ) -> None:
        """Free the open keys of these dead letters before they are retried.

        Their escalations stay open, each under another key, until `close_dead_letters`. If a
        message becomes a dead letter again before that, it gets a new escalation, and notifiers
        send it.
        """
        keys = [open_key(EscalationKind.DEAD_LETTER, each, group) for each in message_ids]
        connection.execute(self._letters_retried, {"keys": keys, "retry": retry_id})

    def close_dead_letters(
        self, connection: Connection, message_ids: Sequence[str], group: str, now: float
    ) -> None:
        """Close the escalations of dead letters that were sent to their group again."""
        values = {"ids": list(message_ids), "group": group, "why": "retry"}
        connection.execute(self._close_letters, values | {"at": utc_datetime(now)})


def _row(escalation: Escalation, at: datetime) -> dict[str, Any]:
    return {
        "kind": str(escalation.kind),
        "message_id": escalation.message_id,
        "consumer_group": escalation.consumer_group,
        "topic": escalation.topic,
        "message_key": escalation.message_key,
        "reason": escalation.reason,
        "open_key": escalation.open_key,
        "create_date": at,
    }


def _used_up(stub: Stub, note: str | None) -> Escalation:
    groups = ", ".join(stub.required_groups)
    reason = f"sent {times(stub.count)} "
    reason += f"and not consumed by all of {groups}" if groups else "and never acknowledged"
    reason += f"; noted: {note}" if note else ""
    return Escalation(
        kind=EscalationKind.USED_UP,
        message_id=stub.message_id,
        topic=stub.topic,
        message_key=stub.message_key,
        reason=reason,
    )


def insert_new(dialect: str, table: Table) -> Any:
    """Return an INSERT that does nothing if the row exists.

    On MySQL it sets a column to its own value. INSERT IGNORE would also truncate texts, and would
    replace NULL by a default.
    """
    new = insert_of(dialect)(table)
    if dialect_family(dialect) == "mysql":
        key = next(iter(table.primary_key))
        return new.on_duplicate_key_update({key.name: key})
    return new.on_conflict_do_nothing()


def escalations_of(database: Database) -> SqlEscalations:
    """Return the escalations of a database."""
    return SqlEscalations(database.forgiving_engine, database.escalations, database.stubs)
