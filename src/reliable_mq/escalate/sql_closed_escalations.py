"""Remove old closed escalations and their alerts. Retention uses it."""

from sqlalchemy import Connection, Table, bindparam, delete, exists, select

from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.escalate.escalation import AlertState


class SqlClosedEscalations:
    """The closed escalations of one database. Works in the caller's transaction.

    Args:
        escalations: the table of escalations.
        alerts: the table of alerts.
        dialect: the kind of database.
    """

    def __init__(self, escalations: Table, alerts: Table, dialect: str) -> None:
        this, alert = escalations.c, alerts.c
        untold = exists().where(
            alert.escalation_seq == this.seq, alert.state == AlertState.GATHERED.value
        )
        self._old = (
            select(this.seq)
            .where(this.close_date < bindparam("before"), ~untold)
            .order_by(this.close_date)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        self._remove_alerts = delete(alerts).where(is_among(alert.escalation_seq, "seqs", dialect))
        self._remove = delete(escalations).where(is_among(this.seq, "seqs", dialect))

    def remove(self, connection: Connection, before: float, limit: int) -> int:
        """Remove escalations that were closed before a time; return how many.

        An escalation stays while one of its alerts is not sent yet. `before` is in seconds since
        the epoch; `limit` is the most that one call removes.
        """
        values = {"before": utc_datetime(before), "limit": limit}
        seqs = list(connection.execute(self._old, values).scalars())
        for statement in (self._remove_alerts, self._remove) if seqs else ():
            connection.execute(statement, {"seqs": seqs})
        return len(seqs)
