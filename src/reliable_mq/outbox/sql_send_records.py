"""Records the results of sends in the rows of their stubs: many rows in one statement.

Receives outcomes. Changes only rows that the sender still owns: an expired lease must not write.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    literal_column,
    null,
    or_,
    update,
)

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import PreparedStatement
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import StubEvent, next_status

_UNCONFIRMED: ColumnElement[int] = literal_column(str(StubStatus.UNCONFIRMED.value))

Given = Callable[[str], ColumnElement[Any]]
"""The name of a value -> the expression that reads it in a statement."""

_OF_EACH = {"id": "message_id", "new_count": "count", "next_time": "resend_time"}
_OF_SENT = {"new_broker": "broker_name", "new_queue": "queue_id", "new_offset": "offset"}
_OF_FAILED = {"new_note": "note"}
"""The values of each send, and the column that has the same type."""


class SendRecords:
    """The statements that record sends in one message stub table. Built and compiled once."""

    def __init__(self, table: Table, dialect: str) -> None:
        self._sent = _Record(table, dialect, _OF_EACH | _OF_SENT, _sent)
        self._failed = _Record(table, dialect, _OF_EACH | _OF_FAILED, _failed)
        # The broker makes the message visible at another time than the stub says.
        self._arrival = (
            update(table)
            .where(table.c.message_id == bindparam("id"), table.c.owner == bindparam("me"))
            .values(deliver_time=bindparam("arrives"), note=bindparam("why"))
        )

    def write(
        self, connection: Connection, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> None:
        """Write down the results of the sends, for stubs that `owner` still owns."""
        sent, failed, others = [], [], []
        for outcome in sorted(outcomes, key=_message_id):  # consumers lock in this order, too
            row = {
                "id": outcome.message_id,
                "new_count": outcome.count,
                "next_time": utc_datetime(outcome.next_time),
            }
            if (position := outcome.position) is not None:
                row["new_broker"], row["new_queue"] = position.broker_name, position.queue_id
                sent.append(row | {"new_offset": position.offset})
                if outcome.arrives is not None:
                    arrives = {"arrives": utc_datetime(outcome.arrives), "why": outcome.note}
                    others.append({"id": outcome.message_id, "me": owner} | arrives)
            else:
                failed.append(row | {"new_note": outcome.error or ""})
        if others:  # before the next statement clears the owner
            connection.execute(self._arrival, others)
        of_all = {"me": owner, "at": utc_datetime(now)}
        for statement, rows in ((self._sent, sent), (self._failed, failed)):
            if rows:
                statement.execute(connection, rows, of_all)


class _Record:
    """One statement, for one row and for several.

    On PostgreSQL, several rows are passed as one array for each column. That costs both sides a
    fraction of one statement for each row.
    """

    def __init__(
        self,
        table: Table,
        dialect: str,
        of_each: dict[str, str],
        changes: Callable[[Table, Given], Any],
    ) -> None:
        self._names = tuple(of_each)
        types = {name: table.c[column].type for name, column in of_each.items()}
        one = _update(
            table,
            changes(table, lambda name: bindparam(name, type_=types[name])),
            bindparam("id"),
        )
        self._one = PreparedStatement(one)
        self._many = one
        self._arrays: PreparedStatement | None = None
        if dialect == "postgresql":
            row = rows_of_arrays(types)
            many = _update(table, changes(table, row.c.__getitem__), row.c.id)
            self._arrays = PreparedStatement(many)

    def execute(
        self, connection: Connection, rows: Sequence[dict[str, Any]], of_all: dict[str, Any]
    ) -> None:
        if len(rows) == 1:
            self._one.execute(connection, rows[0] | of_all)
        elif self._arrays is None:
            connection.execute(self._many, [row | of_all for row in rows])
        else:
            arrays = {name: [row[name] for row in rows] for name in self._names}
            self._arrays.execute(connection, arrays | of_all)


def _update(table: Table, changes: dict[str, Any], message_id: ColumnElement[str]) -> Any:
    return (
        update(table)
        .where(table.c.message_id == message_id, table.c.owner == bindparam("me"))
        .values(owner=null(), lease_until=null(), update_date=bindparam("at"), **changes)
    )


def _sent(table: Table, given: Given) -> dict[str, Any]:
    """Return the changes of a row after the broker acknowledged its message."""
    stub = table.c
    # Without a required group the broker's acknowledgement confirms.
    is_confirmed = and_(stub.status == _UNCONFIRMED, stub.required_groups == "")
    confirmed = next_status(StubStatus.UNCONFIRMED, StubEvent.CONFIRM).value
    is_settled = or_(_is_settled(table), stub.required_groups == "")
    return {
        "count": given("new_count"),
        "broker_name": given("new_broker"),
        "queue_id": given("new_queue"),
        "offset": given("new_offset"),
        "status": case((is_confirmed, confirmed), else_=stub.status),
        "resend_time": case((is_settled, null()), else_=given("next_time")),
    }


def _failed(table: Table, given: Given) -> dict[str, Any]:
    """Return the changes of a row after a failed send: the message may not be stored."""
    stub = table.c
    return {
        "count": given("new_count"),
        "note": case((stub.given_up, stub.note), else_=given("new_note")),
        "resend_time": case((_is_settled(table), null()), else_=given("next_time")),
    }


def _is_settled(table: Table) -> ColumnElement[bool]:
    """Return: the stub is due no more.

    A consumer may have given the message up before its send was recorded: its reason stays.
    """
    return or_(table.c.status != _UNCONFIRMED, table.c.given_up)


def _message_id(outcome: SendOutcome) -> str:
    return outcome.message_id
