"""The SQL statements on alerts: each notifier sends each escalation once, from any process.

Tables `<prefix>alert` and `<prefix>notifier`, see `sql_people_tables`. A notifier gathers all open
escalations that it has no alert for. A digest is committed before it is sent.

One process at a time owns a notifier, by a lease. If this process dies, another one continues after
the lease has expired. Each write checks the owner, so a process with an expired lease cannot write
once another process is the owner.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from reliable_mq.database.sql_types import READS_ONLY, utc_datetime
from reliable_mq.escalate.escalation import (
    DIGEST_ITEMS_MAX,
    AlertEvent,
    AlertState,
    Digest,
    Escalation,
    EscalationCount,
    NotifierQuery,
    NotifierState,
    next_digest_time,
    next_state,
    retry_wait,
)
from reliable_mq.escalate.sql_escalations import insert_new

SHARES_MAX = 100


class SqlAlerts:
    """The alerts of one database. Every method is one transaction.

    Args:
        engine: the database.
        escalations: the table of escalations.
        alerts: the table of alerts.
        notifiers: the table of notifiers.
        application: the name of the application, for the digests.
    """

    def __init__(
        self, engine: Engine, escalations: Table, alerts: Table, notifiers: Table, application: str
    ) -> None:
        self._engine = engine
        self._application = application
        self._insert_notifier = insert_new(engine.dialect.name, notifiers)
        self._prepare_looking(escalations, alerts, notifiers)
        self._prepare_holding(notifiers)
        self._prepare_digests(escalations, alerts)

    def _prepare_looking(self, escalations: Table, alerts: Table, notifiers: Table) -> None:
        this, alert, notifier = escalations.c, alerts.c, notifiers.c
        who = bindparam("who", type_=alert.notifier.type)
        has_alert = exists().where(alert.escalation_seq == this.seq, alert.notifier == who)
        self._lacking = (this.close_date.is_(None), this.seq > bindparam("after"), ~has_alert)
        lacks = select(this.seq).where(*self._lacking)
        gathered = alert.state == AlertState.GATHERED.value
        later = or_(notifier.next_time > bindparam("at"), notifier.lease_until > bindparam("at"))
        self._look = select(
            select(func.max(this.seq)).scalar_subquery().label("newest"),
            or_(
                lacks.exists(),
                select(notifier.name)
                .where(notifier.name == who, notifier.digest_id.is_not(None))
                .exists(),
            ).label("waits"),
            select(notifier.name).where(notifier.name == who, later).exists().label("is_held"),
        )
        self._waiting = select(
            select(func.count()).select_from(lacks.subquery()).scalar_subquery()
            + select(func.count()).where(alert.notifier == who, gathered).scalar_subquery()
        )

    def _prepare_holding(self, notifiers: Table) -> None:
        notifier = notifiers.c
        self._all_notifiers = select(notifiers)
        self._find = select(notifiers).where(notifier.name == bindparam("who")).with_for_update()
        self._hold = _of(notifiers, notifier.name == bindparam("who")).values(
            owner=bindparam("me"),
            lease_until=bindparam("until"),
            digest_id=bindparam("digest"),
            digest_time=bindparam("gathered"),
        )
        self._drop_digest = _of(notifiers, notifier.name == bindparam("who")).values(digest_id=None)
        ours = and_(notifier.name == bindparam("who"), notifier.owner == bindparam("me"))
        self._done = _of(notifiers, ours).values(
            owner=None,
            lease_until=None,
            digest_id=None,
            failures=0,
            note=None,
            told_date=bindparam("at"),
            next_time=bindparam("next"),
        )
        self._failed = _of(notifiers, ours).values(
            owner=None,
            lease_until=None,
            failures=notifier.failures + 1,
            note=bindparam("text"),
            next_time=bindparam("next"),
        )

    def _prepare_digests(self, escalations: Table, alerts: Table) -> None:
        this, alert = escalations.c, alerts.c
        row = (
            this.seq,
            bindparam("who", type_=alert.notifier.type),
            literal(AlertState.GATHERED.value),
            bindparam("digest", type_=alert.digest_id.type),
        )
        self._gather = insert(alerts).from_select(
            ["escalation_seq", "notifier", "state", "digest_id"], select(*row).where(*self._lacking)
        )
        in_digest = alert.digest_id == bindparam("digest")
        ours = (alert.notifier == bindparam("who"), alert.state == AlertState.GATHERED.value)
        self._tell = _of(alerts, *ours, in_digest).values(
            state=next_state(AlertState.GATHERED, AlertEvent.TELL).value, told_date=bindparam("at")
        )
        joined = escalations.join(alerts, this.seq == alert.escalation_seq)
        self._shares = (
            select(
                this.kind, this.topic, this.consumer_group, func.count(), func.min(this.create_date)
            )
            .select_from(joined)
            .where(in_digest)
            .group_by(this.kind, this.topic, this.consumer_group)
            .order_by(func.count().desc(), this.kind, this.topic, this.consumer_group)
        )
        self._items = (
            select(escalations)
            .select_from(joined)
            .where(in_digest)
            .order_by(this.seq)
            .limit(DIGEST_ITEMS_MAX)
        )

    def find_work(self, notifier: str, now: float, after: int) -> NotifierQuery:
        """Say whether a notifier has work to do, without a lock.

        Args:
            notifier: its name.
            now: the time, seconds since the epoch.
            after: skip escalations up to this number (`seq`).
        """
        values = {"who": notifier, "at": utc_datetime(now), "after": after}
        with self._engine.execution_options(**READS_ONLY).begin() as connection:
            row = connection.execute(self._look, values).one()
        return NotifierQuery(row.newest or 0, bool(row.waits), bool(row.is_held))

    def notifier_states(self, notifiers: Collection[str]) -> dict[str, NotifierState]:
        """Return the states of these notifiers, and of all that ever ran, by name."""
        with self._engine.execution_options(**READS_ONLY).begin() as connection:
            rows = {row.name: row for row in connection.execute(self._all_notifiers)}
            waiting = {
                name: connection.execute(self._waiting, {"who": name, "after": 0}).scalar_one()
                for name in rows.keys() | set(notifiers)
            }
        return {
            name: NotifierState(
                name=name,
                waiting=waiting[name],
                failures=rows[name].failures if name in rows else 0,
                next_time=rows[name].next_time if name in rows else None,
                told_date=rows[name].told_date if name in rows else None,
                note=rows[name].note if name in rows else None,
            )
            for name in sorted(waiting)
        }

    def claim(
        self, notifier: str, now: float, owner: str, lease: float, digest_id: str, after: int = 0
    ) -> Digest | None:
        """Claim the digest that a notifier shall send now.

        None: there is nothing to send, it is too early, or another process has the lease.

        Args:
            notifier: its name.
            now: the time, seconds since the epoch.
            owner: the process that sends.
            lease: seconds for which no other process sends.
            digest_id: the id of a new digest. A digest that was gathered but not sent keeps its id.
            after: skip escalations up to this number (`seq`).
        """
        at = utc_datetime(now)
        with self._engine.begin() as connection:
            row = self._notifier(connection, notifier, now)
            leased = row.lease_until is not None and row.lease_until > at
            if leased or row.next_time > at:
                return None
            gathered = row.digest_time if row.digest_id else at
            chosen = row.digest_id or digest_id
            if not row.digest_id:
                # No other process gathers for this notifier now: its row is locked.
                lacking = {"who": notifier, "digest": chosen, "after": after}
                connection.execute(self._gather, lacking)
            digest = self._digest(connection, chosen, gathered)
            if digest.total == 0:  # nothing to gather, or its rows were removed
                connection.execute(self._drop_digest, {"who": notifier})
                return None
            holding = {"who": notifier, "me": owner, "until": utc_datetime(now + lease)}
            connection.execute(self._hold, holding | {"digest": chosen, "gathered": gathered})
            return digest

    def _notifier(self, connection: Connection, name: str, now: float) -> Any:
        """Lock and return the row of a notifier. Insert it if there is none."""
        row = connection.execute(self._find, {"who": name}).one_or_none()
        if row is None:
            first = {"name": name, "next_time": utc_datetime(now)}
            connection.execute(self._insert_notifier, first)
            row = connection.execute(self._find, {"who": name}).one()
        return row

    def _digest(self, connection: Connection, digest_id: str, gathered: Any) -> Digest:
        named = {"digest": digest_id}
        sums = connection.execute(self._shares, named).all()
        items = connection.execute(self._items, named).all()
        return Digest(
            digest_id=digest_id,
            application=self._application,
            time=gathered,
            total=sum(row[3] for row in sums),
            shares=tuple(EscalationCount(*row) for row in sums[:SHARES_MAX]),
            items=tuple(
                Escalation(
                    kind=row.kind,
                    message_id=row.message_id,
                    topic=row.topic,
                    reason=row.reason,
                    consumer_group=row.consumer_group,
                    message_key=row.message_key,
                    create_date=row.create_date,
                )
                for row in items
            ),
        )

    def record_sent(
        self, notifier: str, digest: Digest, owner: str, now: float, cooldown: float
    ) -> bool:
        """Record that a digest was sent; False: another process owns the notifier now."""
        values = {"who": notifier, "me": owner, "at": utc_datetime(now)}
        later = next_digest_time(now, digest.time.timestamp(), cooldown)
        with self._engine.begin() as connection:
            done = connection.execute(self._done, values | {"next": utc_datetime(later)})
            if done.rowcount != 1:
                return False
            connection.execute(self._tell, values | {"digest": digest.digest_id})
        return True

    def record_failure(self, notifier: str, owner: str, why: str, now: float) -> float:
        """Record that a send failed; return the seconds until the next try."""
        with self._engine.begin() as connection:
            row = connection.execute(self._find, {"who": notifier}).one()
            wait = retry_wait(row.failures + 1)
            values = {"who": notifier, "me": owner, "text": why}
            connection.execute(self._failed, values | {"next": utc_datetime(now + wait)})
        return wait


def _of(table: Table, *conditions: ColumnElement[bool]) -> Any:
    return update(table).where(*conditions)
