"""Confirmation: a stub is settled when every required group has consumed its message.

Receives the message ids that a consumer's transaction has just consumed; writes in that
transaction. Two groups that commit at the same moment must not each miss the other's row. So the
stub's row is locked first, and the statement that counts consume logs begins after that. The table
of confirmations has what groups of other databases have consumed (`sql_notices`).
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    exists,
    func,
    literal,
    not_,
    null,
    select,
    union,
    update,
)

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_prepared import PreparedStatement
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.outbox.stub import StubEvent, next_status


class SqlConfirmation:
    """Confirms stubs in the database of the consume logs. Works in the caller's transaction.

    Args:
        stubs: the message stub table.
        logs: the consume log of the same database.
        notices: the table of confirmations of the same database.
        dialect: the database's dialect.
    """

    def __init__(self, stubs: Table, logs: Table, notices: Table, dialect: str) -> None:
        self.table = notices
        place_of = func.strpos if dialect == "postgresql" else func.instr
        stub, log = stubs.c, logs.c
        comma = literal(",")
        required = comma + stub.required_groups + comma

        def consumed_in(table: Table) -> list[ColumnElement[bool]]:
            return [
                table.c.message_id == stub.message_id,
                table.c.state == LogState.CONSUMED.value,
                place_of(required, comma + table.c.consumer_group + comma) > 0,
            ]

        here = select(func.count()).where(*consumed_in(logs)).scalar_subquery()
        # A group that moved from one database to another has rows in both.
        here_too = exists().where(
            log.message_id == notices.c.message_id,
            log.consumer_group == notices.c.consumer_group,
            log.state == LogState.CONSUMED.value,
        )
        elsewhere = (
            select(func.count()).where(*consumed_in(notices), not_(here_too)).scalar_subquery()
        )
        consumed = here + elsewhere
        wanted = func.length(required) - func.length(func.replace(required, ",", "")) - 1
        #: Every required group has consumed the message of the stub.
        self.is_complete: ColumnElement[bool] = consumed == wanted
        self._one = _Statements(stubs, stub.message_id == bindparam("id"), self.is_complete)
        self._many = _Statements(stubs, is_among(stub.message_id, "id", dialect), self.is_complete)
        self._is_alone = True
        self._consumed = union(
            *(
                select(table.c.message_id, table.c.consumer_group).where(
                    is_among(table.c.message_id, "ids", dialect),
                    table.c.state == LogState.CONSUMED.value,
                )
                for table in (logs, notices)
            )
        )
        self._told = select(
            notices.c.message_id, notices.c.consumer_group, notices.c.state, notices.c.lease_until
        ).where(is_among(notices.c.message_id, "ids", dialect))

    def confirm(
        self, connection: Connection, group: str, message_ids: Sequence[str], now: float
    ) -> None:
        """Confirm the stubs whose last required group is `group`, in this transaction.

        Ids without a stub here (of another database, of another producer) change nothing.
        """
        these: dict[str, object]
        if len(message_ids) == 1:  # the hot path: a plain comparison is compiled only once
            statements, these = self._one, {"id": message_ids[0]}
            if self._is_alone and self._confirm_alone(connection, group, message_ids[0], now):
                return
        else:
            statements, these = self._many, {"id": list(message_ids)}
        alone = shared = 0
        for groups in statements.lock.execute(connection, these).scalars():
            alone += groups == group
            shared += groups != group and group in groups.split(",")
        values = these | {"at": utc_datetime(now), "alone": group}
        self._is_alone = not shared
        if shared:
            statements.confirm_complete.execute(connection, values)
        if alone:
            statements.confirm_alone.execute(connection, values)

    def _confirm_alone(
        self, connection: Connection, group: str, message_id: str, now: float
    ) -> bool:
        """Confirm a stub that waits for this group only, without reading it first.

        Usually the next message is like the last one, so this is tried after such a stub.
        """
        values = {"id": message_id, "at": utc_datetime(now), "alone": group}
        return self._one.confirm_alone.execute(connection, values).rowcount == 1

    def catch_up(self, connection: Connection, message_ids: Sequence[str], now: float) -> None:
        """Confirm the stubs that every required group has consumed, in any order."""
        ids: dict[str, object] = {"id": list(message_ids)}
        self._many.lock.execute(connection, ids)
        values = ids | {"at": utc_datetime(now)}
        self._many.confirm_complete.execute(connection, values)

    def consumed(self, connection: Connection, message_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return the (message id, consumer group) pairs that were consumed here or elsewhere."""
        rows = connection.execute(self._consumed, {"ids": list(message_ids)})
        return {(row.message_id, row.consumer_group) for row in rows}

    def notices_of(self, connection: Connection, message_ids: Sequence[str]) -> Sequence[Any]:
        """Return other databases' notices: message id, consumer group, state, lease until."""
        return connection.execute(self._told, {"ids": list(message_ids)}).all()


class _Statements:
    """Lock and confirm, for one stub or for several."""

    def __init__(
        self, stubs: Table, these: ColumnElement[bool], complete: ColumnElement[bool]
    ) -> None:
        stub = stubs.c
        unconfirmed = stub.status == StubStatus.UNCONFIRMED.value
        confirm = (
            update(stubs)
            .where(these, unconfirmed)
            .values(
                status=next_status(StubStatus.UNCONFIRMED, StubEvent.CONFIRM).value,
                resend_time=null(),
                update_date=bindparam("at"),
            )
        )
        self.lock = PreparedStatement(
            select(stub.required_groups)
            .where(these, unconfirmed)
            .order_by(stub.message_id)  # so that two batches lock in the same order
            .with_for_update()
        )
        self.confirm_complete = PreparedStatement(confirm.where(complete))
        alone = stub.required_groups == bindparam("alone")
        self.confirm_alone = PreparedStatement(confirm.where(alone))


def confirmation_of(database: Database) -> SqlConfirmation:
    """Return the confirmation of a database's stubs."""
    return SqlConfirmation(database.stubs, database.logs, database.confirmations, database.dialect)
