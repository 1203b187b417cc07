"""Remove settled stubs and consumed logs of one database, in small transactions.

Table `<prefix>retention` has one row. It has the owner of the duty, and one mark for each ledger.
Messages before the mark may have been removed from the ledger. Every removal commits the mark, too.

A log is removed only after its stub. As long as the stub exists, a person or a repair may send the
message again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.sql_consume_log_table import consumed_rows, free_keys
from reliable_mq.database.sql_scheduling_tables import ROWS_DUTY
from reliable_mq.database.sql_stub_table import arrived_rows, settled_rows
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.retention.retention import RemovedRows
from reliable_mq.watched_time import WatchedTime, read

RemoveOld = Callable[[Connection, float, int], int]
Ledger = Literal["stubs", "logs"]

LEASES_BEYOND = 10
"""A lease that ends more than this many lease lengths ahead was written by a wrong clock."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_START = (_BEGINNING, "", "")


class SqlRetention:
    """The statements of retention on one database. Every method is one transaction or two.

    Invariant R4: a mark never decreases, and no row that is younger than the mark is removed.

    Args:
        engine: the database.
        stubs: the message stubs.
        logs: the consume log of the same database.
        notices: the notices of other databases; removed with their stubs.
        keys: the business keys of consumed messages; removed with their logs.
        duties: the table of the duty.
        watched: the table with the watched time.
        remove_calls: (connection, now, limit) -> number of results of idempotent calls removed.
        remove_escalations: (connection, before, limit) -> number of closed escalations removed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        stubs: Table,
        logs: Table,
        notices: Table,
        keys: Table,
        duties: Table,
        watched: Table,
        remove_calls: RemoveOld,
        remove_escalations: RemoveOld,
    ) -> None:
        self._engine = engine
        self._duties = duties
        self._remove_calls = remove_calls
        self._remove_escalations = remove_escalations
        self._watching = SqlWatchedTime(watched)
        dialect = engine.dialect.name
        duty = duties.c
        this = duty.duty == literal_column(f"'{ROWS_DUTY}'")
        self._take = (
            update(duties)
            .where(
                this,
                or_(
                    duty.owner.is_(None),
                    duty.owner == bindparam("me"),
                    duty.lease_until <= bindparam("at"),
                    # A clock that was ahead wrote this lease: do not wait until it expires.
                    duty.lease_until > bindparam("beyond"),
                ),
            )
            .values(owner=bindparam("me"), lease_until=bindparam("until"))
        )
        ours = and_(this, duty.owner == bindparam("me"))
        self._keep = update(duties).where(ours).values(lease_until=bindparam("until"))
        marks = {"stubs": duty.stubs_removed_until, "logs": duty.logs_removed_until}
        self._move_mark = {
            ledger: update(duties).where(this).values({column: _later(column)})
            for ledger, column in marks.items()
        }
        self._marks = select(*marks.values()).where(this)
        known = self._watching.find.scalar_subquery()
        self._said = select(duty.reconciled_until, known.label("known")).where(this)
        of_stubs, of_logs = stubs.c.update_date, logs.c.consume_date
        self._newest = [
            # Skip dates that a driver cannot read: another program may have written infinity.
            select(func.max(date)).where(rows, date > _BEGINNING, date <= bindparam("at"))
            for date, rows in ((of_stubs, settled_rows(stubs)), (of_logs, consumed_rows(logs)))
        ]
        self._gate: datetime | None = None
        self._known: WatchedTime | None = None
        self._swept: tuple[datetime, str, str] = _START
        self._swept_stubs: datetime | None = None
        self._find_and_remove_stubs(stubs, notices, dialect)
        self._find_and_remove_logs(stubs, logs, keys, dialect)

    def _find_and_remove_stubs(self, stubs: Table, notices: Table, dialect: str) -> None:
        stub = stubs.c
        self._old_stubs = (
            select(stub.seq, stub.message_id, stub.update_date)
            # Only settled rows: a row with an unknown status is never removed by age.
            .where(
                settled_rows(stubs),
                stub.update_date < bindparam("before"),
                arrived_rows(stubs, bindparam("before", type_=stub.update_date.type)),
            )
            .order_by(stub.update_date)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        # The oldest rows may be many that must stay, such as delayed messages. So a sweep reads
        # them once only.
        self._next_stubs = self._old_stubs.where(stub.update_date >= bindparam("date"))
        self._remove_stubs = delete(stubs).where(is_among(stub.seq, "seqs", dialect))
        self._remove_told = delete(notices).where(is_among(notices.c.message_id, "ids", dialect))

    def _find_and_remove_logs(self, stubs: Table, logs: Table, keys: Table, dialect: str) -> None:
        stub, log, key = stubs.c, logs.c, keys.c
        # In the order of time and key: a sweep reads a log whose stub still exists once only, and
        # each statement reads no more rows than its limit.
        place = (log.consume_date, log.consumer_group, log.message_id)
        behind = or_(
            log.consume_date > bindparam("date"),
            and_(
                log.consume_date == bindparam("date"),
                or_(
                    log.consumer_group > bindparam("group"),
                    and_(
                        log.consumer_group == bindparam("group"),
                        log.message_id > bindparam("id"),
                    ),
                ),
            ),
        )
        self._old_logs = (
            select(*place)
            .where(
                consumed_rows(logs),
                log.confirm_time.is_(None),  # otherwise a notice is still to be sent
                log.consume_date >= bindparam("date"),
                log.consume_date < bindparam("before"),
                behind,
            )
            .order_by(*place)
            .limit(bindparam("limit"))
        )
        # A separate statement by id: as a part of the one above, a planner may read all stubs.
        self._with_stub = select(stub.message_id).where(is_among(stub.message_id, "ids", dialect))
        self._remove_logs = delete(logs).where(
            log.consumer_group == bindparam("group"), is_among(log.message_id, "ids", dialect)
        )
        self._remove_keys = delete(keys).where(
            key.consumer_group == bindparam("group"), is_among(key.message_id, "ids", dialect)
        )
        old_and_free = (free_keys(keys), key.lease_until < bindparam("before"))
        self._old_free_keys = (
            select(key.consumer_group, key.key_digest)
            .where(*old_and_free)
            .order_by(key.lease_until)
            .limit(bindparam("limit"))
        )
        # The conditions are repeated: a message may claim a key at this moment.
        self._remove_free_keys = delete(keys).where(
            key.consumer_group == bindparam("group"),
            is_among(key.key_digest, "digests", dialect),
            *old_and_free,
        )

    def take_duty(self, now: float, owner: str, lease: float) -> bool:
        """Take the duty or renew it, for `lease` seconds; False: another instance has it."""
        times = {"at": now, "until": now + lease, "beyond": now + LEASES_BEYOND * lease}
        values = {"me": owner} | {name: utc_datetime(time) for name, time in times.items()}
        with self._engine.begin() as connection:
            if self._takes(connection, values):
                return True
            if connection.execute(self._marks).first() is not None:
                return False
        try:
            with self._engine.begin() as connection:
                marks = dict.fromkeys(("stubs_removed_until", "logs_removed_until"), _BEGINNING)
                connection.execute(insert(self._duties), {"duty": ROWS_DUTY, **marks})
                return self._takes(connection, values)
        except IntegrityError:  # another instance inserted the row at this moment
            return False

    def _takes(self, connection: Connection, values: dict[str, Any]) -> bool:
        """Take the duty if it is free, and read the other columns of its row."""
        if connection.execute(self._take, values).rowcount != 1:
            return False
        said = connection.execute(self._said).one()
        self._gate, self._known = said.reconciled_until, read(said.known)
        return True

    def reconciled_until(self) -> float | None:
        """Return the time up to which all was reconciled when the duty was taken.

        None: the database is not reconciled in increments.
        """
        return None if self._gate is None else self._gate.timestamp()

    def watched(self) -> WatchedTime | None:
        """Return the watched time as of when the duty was taken; None: none was recorded."""
        return self._known

    def newest(self, now: float) -> float | None:
        """Return when a stub was settled or a message consumed last, up to `now`; None: never."""
        at = {"at": utc_datetime(now)}
        with self._engine.begin() as connection:
            found = [connection.execute(newest, at).scalar() for newest in self._newest]
        return max((each.timestamp() for each in found if each is not None), default=None)

    def note_watched(self, known: WatchedTime, owner: str, until: float) -> bool:
        """Write the watched time; False: another instance has the duty now."""
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return False
            self._watching.save(connection, known)
        self._known = known
        return True

    def removed_until(self) -> tuple[float | None, float | None]:
        """Return the marks (of stubs, of logs): older messages may have been removed.

        None: nothing was removed.
        """
        with self._engine.begin() as connection:
            stubs, logs = connection.execute(self._marks).first() or (_BEGINNING, _BEGINNING)
        return _seconds(stubs), _seconds(logs)

    def remove_stubs(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Remove stubs that were settled before a time; None: another instance has the duty now.

        Each call continues where the last one ended. At the end it starts again.
        """
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return None
            values = {"before": utc_datetime(before), "limit": limit}
            rows = (
                connection.execute(self._old_stubs, values)
                if self._swept_stubs is None
                else connection.execute(self._next_stubs, values | {"date": self._swept_stubs})
            ).all()
            if rows:
                connection.execute(self._remove_stubs, {"seqs": [row.seq for row in rows]})
                # Notices are of no use without their stub.
                connection.execute(self._remove_told, {"ids": [row.message_id for row in rows]})
                self.move_mark(connection, "stubs", rows[-1].update_date)
        is_full = len(rows) == limit
        self._swept_stubs = rows[-1].update_date if is_full else None
        return RemovedRows(len(rows), is_full)

    def remove_logs(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Check `limit` logs of messages consumed before a time; remove those without a stub.

        Each call continues where the last one ended. At the end it starts again. None: another
        instance has the duty now.
        """
        date, group, message_id = self._swept
        values = {"date": date, "group": group, "id": message_id, "limit": limit}
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return None
            values["before"] = utc_datetime(before)
            rows = connection.execute(self._old_logs, values).all()
            ids = {"ids": sorted({row.message_id for row in rows})}
            staying = set(connection.execute(self._with_stub, ids).scalars()) if rows else set()
            removable: dict[str, list[str]] = defaultdict(list)
            for row in rows:
                if row.message_id not in staying:
                    removable[row.consumer_group].append(row.message_id)
            for name, gone in removable.items():
                # No lock conflicts: CONSUMED rows do not change, and only we have the duty.
                for statement in (self._remove_keys, self._remove_logs):
                    connection.execute(statement, {"group": name, "ids": gone})
            if removable:
                self.move_mark(connection, "logs", rows[-1].consume_date)
        is_full = len(rows) == limit
        self._swept = tuple(rows[-1])[:3] if is_full else _START
        return RemovedRows(sum(map(len, removable.values())), is_full)

    def remove_free_keys(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Remove business keys whose last attempt failed before a time.

        A key of a consumed message is not removed here, but with the log of the message. None:
        another instance has the duty now.
        """
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return None
            old = {"before": utc_datetime(before)}
            rows = connection.execute(self._old_free_keys, old | {"limit": limit}).all()
            digests: dict[str, list[str]] = defaultdict(list)
            for row in rows:
                digests[row.consumer_group].append(row.key_digest)
            for name, gone in sorted(digests.items()):
                values = old | {"group": name, "digests": sorted(gone)}
                connection.execute(self._remove_free_keys, values)
        return RemovedRows(len(rows), len(rows) == limit)

    def remove_calls(self, now: float, owner: str, until: float, limit: int) -> RemovedRows | None:
        """Remove results of idempotent calls whose own window is over; None: the duty is lost."""
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return None
            rows = self._remove_calls(connection, now, limit)
        return RemovedRows(rows, rows == limit)

    def remove_escalations(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Remove escalations that were closed before a time; None: the duty is lost."""
        with self._removal() as connection:
            if not self.keeps(connection, owner, until):
                return None
            rows = self._remove_escalations(connection, before, limit)
        return RemovedRows(rows, rows == limit)

    @contextmanager
    def _removal(self) -> Iterator[Connection]:
        """Begin a transaction that may be lost in a power failure: retention then repeats it.

        Rows and mark are in one commit, and commits are lost from the newest on. So the commit
        need not wait for the disk (PostgreSQL's `synchronous_commit = off`).
        """
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield connection

    def keeps(self, connection: Connection, owner: str, until: float) -> bool:
        """Renew the duty in the transaction of a removal; False: it is no longer ours."""
        values = {"me": owner, "until": utc_datetime(until)}
        return connection.execute(self._keep, values).rowcount == 1

    def move_mark(self, connection: Connection, ledger: Ledger, moment: datetime) -> None:
        """Move the mark of a ledger forward, in the transaction of a removal."""
        connection.execute(self._move_mark[ledger], {"mark": moment})


def _later(column: Column[datetime]) -> ColumnElement[datetime]:
    """Return the later one of the parameter `mark` and the column's value."""
    mark: ColumnElement[datetime] = bindparam("mark", type_=column.type)
    return case((column < mark, mark), else_=column)


def _seconds(mark: datetime) -> float | None:
    return None if mark == _BEGINNING else mark.timestamp()
