"""The statements that record the results of sends in the message stub table.

Only the owner records the result of a send, so that an expired lease cannot write. The results of
many sends are recorded in one statement.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    exists,
    not_,
    null,
    or_,
    select,
    update,
)

from reliable_mq.database.row_values import StubStatus as Status
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import PreparedStatement
from reliable_mq.database.sql_stub_table import UNCONFIRMED
from reliable_mq.database.sql_types import (
    is_among,
    utc_datetime,
)
from reliable_mq.outbox.stub import StubEvent, next_status
from reliable_mq.outbox.stub_sends import SendOutcome

Given = Callable[[str], ColumnElement[Any]]
"""The name of a value -> the expression that reads it in a statement."""
Step = Callable[[Connection], Any]
"""Executes one statement."""
_OF_EACH_SEND = {"id": "message_id", "new_count": "count", "next_time": "resend_time"}
_OF_SENT = {"new_broker": "broker_name", "new_queue": "queue_id", "new_offset": "offset"}
_OF_FAILED = {"new_note": "note"}
"""The values of each recorded send, and the column that has the same type."""


class SendRecords:
    """The statements that record sends in one message stub table. Built and compiled once."""

    def __init__(self, table: Table, dialect: str) -> None:
        self._sent = _Record(table, dialect, _OF_EACH_SEND | _OF_SENT, _sent)
        self._failed = _Record(table, dialect, _OF_EACH_SEND | _OF_FAILED, _failed)
        self._free = _recorded_if_free(table) if dialect == "postgresql" else None
        # The broker makes the message visible at another time than the stub says.
        self._arrival = (
            update(table)
            .where(table.c.message_id == bindparam("id"), table.c.owner == bindparam("me"))
            .values(deliver_time=bindparam("arrives"), note=bindparam("why"))
        )

    def record_outcomes(
        self, connection: Connection, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> None:
        """Write down the results of the sends, for stubs that `owner` still owns."""
        for step in self.steps(outcomes, owner, now):
            step(connection)

    def steps(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> list[Step]:
        """Return what writes down the results of the sends, for stubs that `owner` still owns."""
        sent, failed, others = [], [], []
        for outcome in sorted(outcomes, key=_message_id):  # consumers lock in this order, too
            row = {
                "id": outcome.message_id,
                "new_count": outcome.count,
                "next_time": outcome.next_time,
            }
            if (position := outcome.position) is not None:
                sent.append(
                    row
                    | {
                        "new_broker": position.broker_name,
                        "new_queue": position.queue_id,
                        "new_offset": position.offset,
                    }
                )
                if outcome.arrives is not None:
                    arrives = {"arrives": utc_datetime(outcome.arrives), "why": outcome.note}
                    others.append({"id": outcome.message_id, "me": owner} | arrives)
            else:
                failed.append(row | {"new_note": outcome.error or ""})
        steps: list[Step] = []
        if others:  # before the next statement clears the owner
            steps.append(methodcaller("execute", self._arrival, others))
        for statement, rows in ((self._sent, sent), (self._failed, failed)):
            if rows:
                steps.append(statement.step(rows, owner, now))
        return steps

    def record_free(
        self, connection: Connection, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> set[str]:
        """Write down successful sends if nobody locks their rows; return the ids of the others."""
        if self._free is None:
            self.record_outcomes(connection, outcomes, owner, now)
            return set()
        sent = [(each, each.position) for each in outcomes if each.position is not None]
        given: dict[str, Any] = {
            "id": [each.message_id for each, _ in sent],
            "new_count": [each.count for each, _ in sent],
            "next_time": [utc_datetime(each.next_time) for each, _ in sent],
            "new_broker": [position.broker_name for _, position in sent],
            "new_queue": [position.queue_id for _, position in sent],
            "new_offset": [position.offset for _, position in sent],
        }
        given |= {"me": owner, "at": utc_datetime(now)}
        return set(self._free.execute(connection, given).scalars())


def _recorded_if_free(table: Table) -> PreparedStatement:
    """Return PostgreSQL's statement that records sends, and returns ids of rows others lock."""
    names = _OF_EACH_SEND | _OF_SENT
    row = rows_of_arrays({name: table.c[column].type for name, column in names.items()})
    stub = table.c
    these = (is_among(stub.message_id, "id", "postgresql"), stub.owner == bindparam("me"))
    ours = (
        select(stub.message_id)
        .where(*these)
        .order_by(stub.message_id)
        .with_for_update(skip_locked=True)
        .cte("ours")
    )
    changed = _update(table, _sent(table, row.c.__getitem__), row.c.id).where(
        row.c.id == ours.c.message_id
    )
    locked = select(stub.message_id).where(
        *these, not_(exists().where(ours.c.message_id == stub.message_id))
    )
    return PreparedStatement(locked.add_cte(changed.cte("changed")))


class _Record:
    """One statement, for one row and for several.

    On PostgreSQL, several rows are passed as one array for each column. That costs both sides a
    fraction of one statement for each row. The rows that are still ours are locked first, in the
    order in which consumers lock them: a join has no order. Most others are settled by now.
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
            row, stub = rows_of_arrays(types), table.c
            ours = (
                select(stub.message_id)
                .where(
                    is_among(stub.message_id, "id", dialect),
                    stub.owner == bindparam("me"),
                )
                .order_by(stub.message_id)
                .with_for_update()
                .cte("ours")
            )
            many = _update(table, changes(table, row.c.__getitem__), row.c.id)
            self._arrays = PreparedStatement(many.where(row.c.id == ours.c.message_id))

    def step(self, rows: Sequence[dict[str, Any]], owner: str, now: float) -> Step:
        """Return what executes the statement for these rows."""
        of_all: dict[str, Any] = {"me": owner, "at": utc_datetime(now)}
        for row in rows:
            row["next_time"] = utc_datetime(row["next_time"])
        if len(rows) == 1:
            return partial(self._one.execute, values=rows[0] | of_all)
        if self._arrays is None:
            return methodcaller("execute", self._many, [row | of_all for row in rows])
        arrays = {name: [row[name] for row in rows] for name in self._names}
        return partial(self._arrays.execute, values=arrays | of_all)


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
    is_confirmed = and_(stub.status == UNCONFIRMED, stub.required_groups == "")
    confirmed = next_status(Status.UNCONFIRMED, StubEvent.CONFIRM).value
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
    return or_(table.c.status != UNCONFIRMED, table.c.given_up)


def _message_id(outcome: SendOutcome) -> str:
    return outcome.message_id
