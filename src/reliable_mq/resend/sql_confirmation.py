"""Confirmation: a stub is settled when every required group has consumed its message.

Receives the ids that a consumer's transaction has just consumed; writes in that transaction. Two
groups that commit at the same moment must not each miss the other's row: the stub's row is locked
first, and the consume logs are counted by a statement that begins after the lock was had.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, Table, bindparam, func, literal, null, select, update

from reliable_mq.idempotency.sql_tables import LogState
from reliable_mq.outbox.stub import StubEvent, StubStatus, next_status
from reliable_mq.sql_types import utc_datetime


class SqlConfirmation:
    """Confirms stubs beside consume logs in one database. Works in the caller's transaction."""

    def __init__(self, stubs: Table, logs: Table, dialect: str) -> None:
        place_of = func.strpos if dialect == "postgresql" else func.instr
        stub, log = stubs.c, logs.c
        unconfirmed = stub.status == StubStatus.UNCONFIRMED.value
        these = stub.message_id.in_(bindparam("ids", expanding=True))
        comma = literal(",")
        required = comma + stub.required_groups + comma
        consumed = (
            select(func.count())
            .where(
                log.message_id == stub.message_id,
                log.state == LogState.CONSUMED.value,
                place_of(required, comma + log.consumer_group + comma) > 0,
            )
            .scalar_subquery()
        )
        wanted = func.length(required) - func.length(func.replace(required, ",", "")) - 1
        confirmed = next_status(StubStatus.UNCONFIRMED, StubEvent.CONFIRM).value
        settled = {
            "status": confirmed,
            "resend_time": null(),
            "update_date": bindparam("at"),
        }
        self._lock = (
            select(stub.message_id, stub.required_groups)
            .where(these, unconfirmed)
            .order_by(stub.message_id)  # two batches lock in one order
            .with_for_update()
        )
        self._confirm = update(stubs).where(these, unconfirmed, consumed == wanted).values(settled)
        self._confirm_alone = update(stubs).where(these, unconfirmed).values(settled)

    def confirm(
        self, connection: Connection, group: str, message_ids: Sequence[str], now: float
    ) -> None:
        """Confirm those of the stubs whose last required group is `group`, in this transaction.

        Ids without a stub here (another database's, a foreign producer's) change nothing.
        """
        at = utc_datetime(now)
        alone, shared = [], []
        for message_id, required in connection.execute(self._lock, {"ids": list(message_ids)}):
            if required == group:
                alone.append(message_id)
            elif group in required.split(","):
                shared.append(message_id)
        if alone:
            connection.execute(self._confirm_alone, {"ids": alone, "at": at})
        if shared:
            connection.execute(self._confirm, {"ids": shared, "at": at})

    def catch_up(self, connection: Connection, message_ids: Sequence[str], now: float) -> None:
        """Confirm those of the stubs that every required group has consumed, whoever was last."""
        ids = list(message_ids)
        connection.execute(self._lock, {"ids": ids})
        connection.execute(self._confirm, {"ids": ids, "at": utc_datetime(now)})
