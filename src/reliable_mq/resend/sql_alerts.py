"""The statements on alerts: who was told of what, once each, by any number of processes.

Tables `<prefix>alert` and `<prefix>notifier`, see `sql_tables`. A digest is committed before it is
told, and one process at a time holds a notifier: by a lease, so that another goes on when it died,
and by its name, so that one whose lease has passed writes nothing.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    insert,
    select,
    true,
    update,
)

from reliable_mq.resend.escalation import (
    DIGEST_ITEMS_MAX,
    AlertEvent,
    AlertState,
    Digest,
    Escalation,
    Share,
    Standing,
    next_digest_time,
    next_state,
    retry_wait,
)
from reliable_mq.resend.sql_escalations import insert_new
from reliable_mq.sql_types import is_among, utc_datetime

HANDED_AT_ONCE = 1_000
FORGOTTEN_AT_ONCE = 500
SHARES_MAX = 100
NOTE_LENGTH_MAX = 1000


class SqlAlerts:
    """The alerts of one database. Every method is one transaction.

    Args:
        engine: the database.
        escalations: the table of escalations.
        alerts: the table of alerts.
        notifiers: the table of notifiers.
        application: the name that digests bear.
    """

    def __init__(
        self, engine: Engine, escalations: Table, alerts: Table, notifiers: Table, application: str
    ) -> None:
        self._engine = engine
        self._application = application
        self._insert_alerts = insert(alerts)
        self._insert_notifier = insert_new(engine.dialect.name, notifiers)
        self._prepare_handing(escalations, alerts)
        self._prepare_holding(notifiers)
        self._prepare_digests(escalations, alerts)

    def _prepare_handing(self, escalations: Table, alerts: Table) -> None:
        this, alert = escalations.c, alerts.c
        self._unhanded = (
            select(this.seq)
            .where(this.is_handed == false())
            .order_by(this.seq)
            .limit(HANDED_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        self._hand = (
            update(escalations)
            .where(is_among(this.seq, "seqs", self._engine.dialect.name))
            .values(is_handed=true())
        )
        untold = exists().where(
            alert.escalation_seq == this.seq,
            alert.state.in_((AlertState.WAITING.value, AlertState.GATHERED.value)),
        )
        self._old = (
            select(this.seq)
            .where(this.close_date < bindparam("before"), this.is_handed == true(), ~untold)
            .order_by(this.seq)
            .limit(FORGOTTEN_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        dialect = self._engine.dialect.name
        self._remove_alerts = delete(alerts).where(is_among(alert.escalation_seq, "seqs", dialect))
        self._remove = delete(escalations).where(is_among(this.seq, "seqs", dialect))
        is_untold = alert.state.in_((AlertState.WAITING.value, AlertState.GATHERED.value))
        self._pending = select(alert.notifier).where(is_untold).distinct()
        self._waiting = (
            select(alert.notifier, func.count()).where(is_untold).group_by(alert.notifier)
        )

    def _prepare_holding(self, notifiers: Table) -> None:
        told = notifiers.c
        self._all_notifiers = select(notifiers)
        self._find = select(notifiers).where(told.name == bindparam("who")).with_for_update()
        self._hold = _of(notifiers, told.name == bindparam("who")).values(
            owner=bindparam("me"),
            lease_until=bindparam("until"),
            digest_id=bindparam("digest"),
            digest_time=bindparam("gathered"),
        )
        self._drop_digest = _of(notifiers, told.name == bindparam("who")).values(digest_id=None)
        ours = and_(told.name == bindparam("who"), told.owner == bindparam("me"))
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
            failures=told.failures + 1,
            note=bindparam("text"),
            next_time=bindparam("next"),
        )

    def _prepare_digests(self, escalations: Table, alerts: Table) -> None:
        this, alert = escalations.c, alerts.c
        is_closed = exists().where(this.seq == alert.escalation_seq, this.close_date.is_not(None))
        waiting = _in(alerts, AlertState.WAITING)
        self._drop = _of(alerts, waiting, is_closed).values(
            state=_after(AlertState.WAITING, AlertEvent.CLOSE)
        )
        self._gather = _of(alerts, waiting).values(
            state=_after(AlertState.WAITING, AlertEvent.GATHER), digest_id=bindparam("digest")
        )
        in_digest = alert.digest_id == bindparam("digest")
        self._tell = _of(alerts, _in(alerts, AlertState.GATHERED), in_digest).values(
            state=_after(AlertState.GATHERED, AlertEvent.TELL), told_date=bindparam("at")
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

    def forget(self, before: float) -> int:
        """Remove escalations that were closed before a time and have nobody left to tell.

        Returns how many: a few hundred at a time, and none that somebody else is removing.
        """
        with self._engine.begin() as connection:
            values = {"before": utc_datetime(before)}
            seqs = list(connection.execute(self._old, values).scalars())
            for statement in (self._remove_alerts, self._remove) if seqs else ():
                connection.execute(statement, {"seqs": seqs})
        return len(seqs)

    def hand_out(self, notifiers: Sequence[str]) -> int:
        """Give every notifier an alert of the escalations that have none yet; return how many."""
        with self._engine.begin() as connection:
            seqs = list(connection.execute(self._unhanded).scalars())
            if seqs:
                rows = [
                    {"escalation_seq": seq, "notifier": name} for seq in seqs for name in notifiers
                ]
                connection.execute(self._insert_alerts, rows)
                connection.execute(self._hand, {"seqs": seqs})
        return len(seqs)

    def pending(self) -> Collection[str]:
        """Return the notifiers that have something to tell, now or later."""
        with self._engine.begin() as connection:
            return set(connection.execute(self._pending).scalars())

    def standings(self) -> dict[str, Standing]:
        """Return how every notifier stands that ever told or has something to tell, by name."""
        with self._engine.begin() as connection:
            waiting = {row[0]: row[1] for row in connection.execute(self._waiting)}
            rows = {row.name: row for row in connection.execute(self._all_notifiers)}
        return {
            name: Standing(
                name=name,
                waiting=waiting.get(name, 0),
                failures=rows[name].failures if name in rows else 0,
                next_time=rows[name].next_time if name in rows else None,
                told_date=rows[name].told_date if name in rows else None,
                note=rows[name].note if name in rows else None,
            )
            for name in sorted(waiting.keys() | rows.keys())
        }

    def claim(
        self, notifier: str, now: float, owner: str, lease: float, digest_id: str
    ) -> Digest | None:
        """Return what a notifier shall tell now; None: nothing, or not yet, or somebody else does.

        Args:
            notifier: its name.
            now: the time, seconds since the epoch.
            owner: who tells.
            lease: seconds for which nobody else will.
            digest_id: names the digest, unless there is one that was begun and not told.
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
                who = {"who": notifier}
                connection.execute(self._drop, who)
                if not connection.execute(self._gather, who | {"digest": chosen}).rowcount:
                    return None
            digest = self._digest(connection, chosen, gathered)
            if digest.total == 0:  # somebody removed its rows
                connection.execute(self._drop_digest, {"who": notifier})
                return None
            holding = {"who": notifier, "me": owner, "until": utc_datetime(now + lease)}
            connection.execute(self._hold, holding | {"digest": chosen, "gathered": gathered})
            return digest

    def _notifier(self, connection: Connection, name: str, now: float) -> Any:
        """Return the row of a notifier, locked; it is made when there is none."""
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
            shares=tuple(Share(*row) for row in sums[:SHARES_MAX]),
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

    def told(self, notifier: str, digest: Digest, owner: str, now: float, cooldown: float) -> bool:
        """Record that a digest was told; False: the notifier is somebody else's by now."""
        values = {"who": notifier, "me": owner, "at": utc_datetime(now)}
        later = next_digest_time(now, digest.time.timestamp(), cooldown)
        with self._engine.begin() as connection:
            done = connection.execute(self._done, values | {"next": utc_datetime(later)})
            if done.rowcount != 1:
                return False
            connection.execute(self._tell, values | {"digest": digest.digest_id})
        return True

    def failed(self, notifier: str, owner: str, why: str, now: float) -> float:
        """Record that a digest was not told; return the seconds until it is tried again."""
        with self._engine.begin() as connection:
            row = connection.execute(self._find, {"who": notifier}).one()
            wait = retry_wait(row.failures + 1)
            values = {"who": notifier, "me": owner, "text": why[:NOTE_LENGTH_MAX]}
            connection.execute(self._failed, values | {"next": utc_datetime(now + wait)})
        return wait


def _of(table: Table, *conditions: ColumnElement[bool]) -> Any:
    return update(table).where(*conditions)


def _in(alerts: Table, state: AlertState) -> ColumnElement[bool]:
    return and_(alerts.c.notifier == bindparam("who"), alerts.c.state == state.value)


def _after(state: AlertState, event: AlertEvent) -> int:
    return next_state(state, event).value
