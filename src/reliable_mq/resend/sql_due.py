"""Claims what is due. Receives a time; hands on stubs that are this scheduler's until a lease ends.

A claim moves `resend_time` to the end of its lease and names its owner: no other scheduler sees the
stub meanwhile, a scheduler that died gives it back by doing nothing, and one whose lease passed can
write nothing, because every write asks for its name. PostgreSQL skips rows that another scheduler
is claiming at this moment; SQLite has one writer at a time anyway.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Table, bindparam, not_, null, or_, select, update

from reliable_mq.idempotency.sql_tables import LogState
from reliable_mq.outbox.sql_stubs import UNCONFIRMED, SqlStubs, stub_of
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.sql_confirmation import SqlConfirmation
from reliable_mq.sql_types import is_among, utc_datetime

LogView = tuple[bool, bool]
"""(the log says CONSUMED, an attempt is alive)"""


class SqlDue:
    """What the scheduler needs of one database. Every method is one transaction."""

    def __init__(
        self, stubs: SqlStubs, logs: Table, confirmation: SqlConfirmation, count_max: int
    ) -> None:
        self._engine = stubs.engine
        self._logs = logs
        self._confirmation = confirmation
        table = stubs.table
        stub = table.c
        due = (
            select(table)
            .where(stub.status == UNCONFIRMED, stub.resend_time <= bindparam("at"))
            .order_by(stub.resend_time, stub.seq)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True, of=table)
        )
        dialect = stubs.engine.dialect.name
        due_again = due.where(stub.count < count_max, not_(stub.given_up))
        self._unsent = due_again.where(stub.broker_name.is_(None), not_(stubs.blocked))
        self._sent = due_again.where(stub.broker_name.is_not(None))
        self._used_up = due.where(or_(stub.count >= count_max, stub.given_up))
        self._claim = (
            update(table)
            .where(is_among(stub.seq, "seqs", dialect))
            .values(
                owner=bindparam("me"),
                lease_until=bindparam("until"),
                resend_time=bindparam("until"),
            )
        )
        ours = (is_among(stub.message_id, "ids", dialect), stub.owner == bindparam("me"))
        self._rest = (
            update(table)
            .where(*ours, stub.status == UNCONFIRMED)
            .values(resend_time=bindparam("next_time"), owner=null(), lease_until=null())
        )
        self._overtaking = select(stub.message_id).where(
            *ours, or_(stubs.blocked, stubs.overtaking)
        )
        self._take_back = (
            update(table).where(*ours).values(broker_name=null(), queue_id=null(), offset=null())
        )
        self._told = self._rest.values(resend_time=null(), update_date=bindparam("at"))
        self._views = select(
            logs.c.message_id, logs.c.consumer_group, logs.c.state, logs.c.lease_until
        ).where(is_among(logs.c.message_id, "ids", dialect))

    def claim_unsent(self, now: float, owner: str, lease: float, limit: int) -> list[Stub]:
        """Claim at most `limit` stubs that no broker acknowledged and whose next send is due."""
        return self._claimed(self._unsent, now, owner, lease, limit)

    def claim_sent(self, now: float, owner: str, lease: float, limit: int) -> list[Stub]:
        """Claim at most `limit` stubs that a broker acknowledged and that may be missed by now."""
        return self._claimed(self._sent, now, owner, lease, limit)

    def claim_used_up(self, now: float, owner: str, lease: float, limit: int) -> list[Stub]:
        """Claim at most `limit` stubs that were sent often enough and still are not confirmed."""
        return self._claimed(self._used_up, now, owner, lease, limit)

    def _claimed(
        self, statement: Any, now: float, owner: str, lease: float, limit: int
    ) -> list[Stub]:
        with self._engine.begin() as connection:
            values = {"at": utc_datetime(now), "limit": limit, "me": "", "ids": []}
            rows = connection.execute(statement, values).all()
            if rows:
                until = utc_datetime(now + lease)
                seqs = [row.seq for row in rows]
                connection.execute(self._claim, {"seqs": seqs, "me": owner, "until": until})
        return [stub_of(row) for row in rows]

    def take_back(self, message_ids: Sequence[str], owner: str) -> set[str]:
        """Make lost stubs with a key unsent again; return those that may not: they would overtake.

        Unsent, they hold up the later ones of their key until they have gone. A stub overtakes
        when an earlier one of its key is not settled: that one cannot be consumed later.
        """
        with self._engine.begin() as connection:
            values: dict[str, object] = {"ids": list(message_ids), "me": owner}
            held = set(connection.execute(self._overtaking, values).scalars())
            values["ids"] = [each for each in message_ids if each not in held]
            connection.execute(self._take_back, values)
        return held

    def views(self, message_ids: Collection[str], now: float) -> dict[tuple[str, str], LogView]:
        """Return what consume logs say, other databases' as told, by (message id, group)."""
        ids, at = list(message_ids), utc_datetime(now)
        with self._engine.begin() as connection:
            rows = [
                *connection.execute(self._views, {"ids": ids}),
                *self._confirmation.told(connection, ids),
            ]
        views: dict[tuple[str, str], LogView] = {}
        for row in rows:
            key = (row.message_id, row.consumer_group)
            consumed, alive = views.get(key, (False, False))
            views[key] = (
                consumed or row.state == LogState.CONSUMED,
                alive or (row.lease_until is not None and row.lease_until > at),
            )
        return views

    def confirm(self, message_ids: Sequence[str], now: float) -> None:
        """Confirm stubs whose required groups have all consumed them."""
        with self._engine.begin() as connection:
            self._confirmation.catch_up(connection, message_ids, now)

    def rest(self, message_ids: Sequence[str], owner: str, next_time: float) -> None:
        """Give stubs back unsent; they are looked at again at `next_time`."""
        values = {"ids": list(message_ids), "me": owner, "next_time": utc_datetime(next_time)}
        with self._engine.begin() as connection:
            connection.execute(self._rest, values)

    def told(self, message_ids: Sequence[str], owner: str, now: float) -> None:
        """Record that a person was told of these stubs."""
        values = {"ids": list(message_ids), "me": owner, "at": utc_datetime(now)}
        with self._engine.begin() as connection:
            connection.execute(self._told, values)
