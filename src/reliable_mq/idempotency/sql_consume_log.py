"""The statements on the consume log, one sentence each.

Table `<prefix>consume_log`, see `sql_consume_log_table`. Its primary key (consumer group, message
id) decides between two owners: the second insert waits for the first one's commit, and then finds a
row. `claim` defines what a row means and how it may change. The conditions here repeat these rules,
so that a token that lost its claim changes nothing.

`inserts_of` inserts rows where a rival may have been first; by dialect. An insert waits for an open
transaction that has inserted the same key. PostgreSQL and SQLite skip existing rows by ON CONFLICT.
MySQL and MariaDB have no such clause. (INSERT IGNORE also cuts text that is too long, and two
messages become one.) There, a failed statement leaves the transaction intact, so the failure is the
answer.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    delete,
    insert,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_prepared import PreparedStatement
from reliable_mq.database.sql_types import dialect_family, is_among, mysql_code, utc_datetime
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.claim import STEP_OF_ROW, ClaimStep, RowState, attempt_after, row_of

NOTICE_LEASE_SECONDS = 5.0
"""Seconds for which only its consumer may send the notice of a consumed message."""
Rows = Sequence[dict[str, Any]]
_DUPLICATE_ENTRY = 1062  # of MySQL and MariaDB
_SAME = ("consumer_group", "state", "lease_until", "create_date", "consume_date")
"""Columns that are the same for all rows of one call."""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery, for the consume log. `token` names its owner; `attempt`: from 1.

    `confirm_to`: the topic where the stub's database, if it is another one, reads notices.
    `in_doubt`: as Redis knows, an earlier attempt began and its end is unknown.
    """

    group: str
    message_id: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    token: str
    attempt: int = 1
    confirm_to: str = ""
    in_doubt: bool = False


class LogLookup(msgspec.Struct, frozen=True):
    """What the log says about a delivery: the next step and, for an attempt, its number.

    `in_doubt`: an earlier attempt began and its end is unknown. `wait`: the rest of another owner's
    lease, in seconds. `message_id`: for a business key, the message of its row.
    """

    step: ClaimStep
    attempt: int = 1
    in_doubt: bool = False
    wait: float = 0.0
    message_id: str = ""


class SqlConsumeLog:
    """The consume log of one database. All methods work in the caller's transaction."""

    identity = "message_id"
    """The column that, with the consumer group, is the primary key."""
    told_of_failure: tuple[str, ...] = ("lease_until", "confirm_to", "confirm_time", "note")
    """The columns that a failed attempt writes; empty: it leaves no row."""

    def __init__(self, table: Table, dialect: str) -> None:
        self.table = table
        log, identity = table.c, table.c[self.identity]
        self._inserts = inserts_of(table, self.identity, dialect, self.told_of_failure)
        this = and_(log.consumer_group == bindparam("group"), identity == bindparam("message"))
        received = log.state == LogState.RECEIVED.value
        ours = log.owner == bindparam("token")
        self._find = (
            select(
                identity.label("identity"),
                log.message_id,
                *(log.state, log.attempt, log.owner, log.lease_until, log.in_doubt),
            )
            .where(
                log.consumer_group == bindparam("group"),
                is_among(identity, "messages", dialect),
            )
            .order_by(identity)
        )
        self._lock = self._find.with_for_update()
        self._take_over = (
            update(table)
            .where(this, received)
            .values(
                owner=bindparam("token"),
                attempt=bindparam("new_attempt"),
                lease_until=bindparam("until"),
                in_doubt=bindparam("doubt"),
                **self._taking_over(),
            )
        )
        self._consume = PreparedStatement(
            update(table)
            .where(this, received, ours)
            .values(
                state=LogState.CONSUMED.value,
                consume_date=bindparam("at"),
                lease_until=null(),
                **self._consuming(),
            )
        )
        consumed = log.state == LogState.CONSUMED.value
        self._is_ours = select(log.attempt).where(this, consumed, ours)
        self._take_back = delete(table).where(this, consumed, ours)
        self._renew = (
            update(table).where(this, received, ours).values(lease_until=bindparam("until"))
        )
        self._release = (
            update(table)
            .where(this, received, ours)
            .values(owner=null(), attempt=log.attempt - 1, lease_until=bindparam("until"))
        )

    def _taking_over(self) -> dict[str, Any]:
        """Return further changes of a row that another attempt takes over."""
        return {}

    def _taker(self, _entry: LogEntry) -> dict[str, Any]:
        """Return the parameters of `_taking_over`."""
        return {}

    def _consuming(self) -> dict[str, Any]:
        """Return further changes of a row that becomes CONSUMED."""
        return {"confirm_to": bindparam("tell_to"), "confirm_time": bindparam("tell_at")}

    def _consumer(self, entry: LogEntry, now: float) -> dict[str, Any]:
        """Return the parameters of `_consuming`."""
        telling = _notice_values(entry, now + NOTICE_LEASE_SECONDS)
        return {"tell_to": telling["confirm_to"], "tell_at": telling["confirm_time"]}

    def insert_consumed(self, connection: Connection, entry: LogEntry, now: float) -> bool:
        """Insert a CONSUMED row; False: a row exists and was not changed."""
        row = self._consumed(entry, now, is_told=bool(entry.confirm_to))
        return self._inserts.one(connection, row)

    def insert_all_consumed(
        self, connection: Connection, entries: Sequence[LogEntry], now: float
    ) -> bool:
        """Insert CONSUMED rows; False: some existed, so the transaction must be rolled back."""
        is_told = any(entry.confirm_to for entry in entries)
        rows = [self._consumed(entry, now, is_told=is_told) for entry in entries]
        return self._inserts.all(connection, self._in_order(rows))

    def _in_order(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(rows) == 1:
            return rows
        return sorted(
            rows, key=lambda row: str(row[self.identity])
        )  # so that two batches lock in the same order

    def found(self, connection: Connection, entry: LogEntry, now: float) -> LogLookup | None:
        """Return what the row of this delivery says, without changing it; None: there is no row."""
        for _, row in self._rows(connection, self._find, [entry]):
            return _judge(entry, row, now)
        return None

    def consumed(self, connection: Connection, entries: Sequence[LogEntry]) -> set[str]:
        """Return the messages among these whose row says CONSUMED; locks nothing."""
        rows = self._rows(connection, self._find, entries)
        return {entry.message_id for entry, row in rows if row.state == LogState.CONSUMED}

    def receive(
        self,
        connection: Connection,
        entries: Sequence[LogEntry],
        now: float,
        lease: float,
        last: int = 0,
    ) -> dict[str, LogLookup]:
        """Begin attempts: RECEIVED rows with our token. Commit them before the handler runs.

        In a batch, a row with a vanished owner is not taken over. It must be received singly: its
        message may have killed the owner, and would cost the others an attempt again. A row whose
        attempt would be number `last` is not taken over either: it must be alone in its process.
        `last` 0: this rule is off.
        """
        until = utc_datetime(now + lease)
        rows = [
            self._row(entry, LogState.RECEIVED, now, owner=entry.token) | {"lease_until": until}
            for entry in entries
        ]
        inserted = self._inserts.some(connection, self._in_order(rows))
        answers: dict[str, LogLookup] = {}
        there: list[LogEntry] = []
        for entry in entries:
            if entry.message_id in inserted:
                mine = LogLookup(ClaimStep.RECEIVE_FIRST, entry.attempt, entry.in_doubt)
                answers[entry.message_id] = mine
            else:
                there.append(entry)
        if not there:
            return answers
        for entry, row in self._rows(connection, self._lock, there):
            found = _judge(entry, row, now)
            if found.step is ClaimStep.RECEIVE_FIRST and _has_vanished(row, now):
                if found.attempt == last:
                    found = msgspec.structs.replace(found, step=ClaimStep.ALONE)
                elif len(entries) > 1:
                    found = msgspec.structs.replace(found, step=ClaimStep.SINGLY)
            answers[entry.message_id] = found
            if found.step is ClaimStep.RECEIVE_FIRST:
                values = {"new_attempt": found.attempt, "until": until, "doubt": found.in_doubt}
                connection.execute(self._take_over, _this(entry) | self._taker(entry) | values)
        gone = [entry for entry in there if entry.message_id not in answers]
        if gone:  # retention has just removed them
            answers |= self.receive(connection, gone, now, lease, last)
        return answers

    def consume(self, connection: Connection, entry: LogEntry, now: float) -> bool:
        """Turn our RECEIVED row into CONSUMED; False: the claim is no longer ours."""
        values = _this(entry) | {"at": utc_datetime(now)} | self._consumer(entry, now)
        return self._consume.execute(connection, values).rowcount == 1

    def fail(
        self, connection: Connection, entry: LogEntry, now: float, retry_at: float, note: str = ""
    ) -> bool:
        """Record a failed attempt and when the next one is expected.

        False: nothing was written, because the row says CONSUMED or another owner has the claim.
        `note` says why there is no next attempt.
        """
        row = self._row(entry, LogState.RECEIVED, now, owner=None) | _notice_values(entry, now)
        row["note"] = note or None
        row["lease_until"] = utc_datetime(retry_at)
        return self._inserts.insert_failed(connection, row, entry.token)

    def last_reason(self, connection: Connection, entry: LogEntry) -> str:
        """Return the reason why the row's last attempt was the last one; "": no reason is known."""
        log = self.table.c
        of_row = (log.consumer_group == entry.group, log.message_id == entry.message_id)
        return connection.execute(select(log.note).where(*of_row)).scalar_one_or_none() or ""

    def release(self, connection: Connection, entry: LogEntry, retry_at: float) -> None:
        """Take back an attempt of ours that ended without an effect and does not count."""
        values = _this(entry) | {"until": utc_datetime(retry_at)}
        connection.execute(self._release, values)

    def has_consumed(self, connection: Connection, entry: LogEntry) -> bool:
        """Return whether this very attempt wrote a CONSUMED row."""
        return connection.execute(self._is_ours, _this(entry)).first() is not None

    def take_back(self, connection: Connection, entry: LogEntry) -> None:
        """Remove this attempt's row, which a COMMIT in its handler committed too early.

        The row says CONSUMED, but the effect is not complete, or was not begun.
        """
        connection.execute(self._take_back, _this(entry))

    def renew(self, connection: Connection, entries: Sequence[LogEntry], until: float) -> None:
        """Extend the leases of running attempts."""
        values = [_this(entry) | {"until": utc_datetime(until)} for entry in entries]
        connection.execute(self._renew, values)

    @staticmethod
    def _rows(
        connection: Connection, statement: Any, entries: Sequence[LogEntry]
    ) -> list[tuple[LogEntry, Any]]:
        if not entries:
            return []
        by_id = {entry.message_id: entry for entry in entries}
        rows = connection.execute(
            statement, {"group": entries[0].group, "messages": sorted(by_id)}
        ).all()
        return [(by_id[row.identity], row) for row in rows]

    def _consumed(self, entry: LogEntry, now: float, *, is_told: bool) -> dict[str, Any]:
        row = self._row(entry, LogState.CONSUMED, now, owner=entry.token)
        return row | _notice_values(entry, now + NOTICE_LEASE_SECONDS) if is_told else row

    def _row(
        self, entry: LogEntry, state: LogState, now: float, owner: str | None
    ) -> dict[str, Any]:
        at = utc_datetime(now)
        return {
            "consumer_group": entry.group,
            "message_id": entry.message_id,
            "topic": entry.topic,
            "broker_name": entry.broker_name,
            "queue_id": entry.queue_id,
            "offset": entry.offset,
            "state": state.value,
            "attempt": entry.attempt,
            "owner": owner,
            "lease_until": None,
            "create_date": at,
            "consume_date": at if state is LogState.CONSUMED else None,
            "in_doubt": entry.in_doubt,
        }


def _this(entry: LogEntry) -> dict[str, Any]:
    return {"group": entry.group, "message": entry.message_id, "token": entry.token}


def _judge(entry: LogEntry, row: Any, now: float) -> LogLookup:
    seen, ends = _seen(row, now)
    if seen is RowState.RUNNING and row.owner == entry.token:
        # our own commit, whose answer was lost
        return LogLookup(ClaimStep.RECEIVE_FIRST, row.attempt, row.in_doubt)
    wait = ends - now if seen is RowState.RUNNING and ends is not None else 0.0
    attempt = attempt_after(seen, row.attempt, entry.attempt)
    in_doubt = seen is RowState.IN_DOUBT or row.in_doubt or entry.in_doubt
    holder = "" if row.message_id == entry.message_id else row.message_id
    return LogLookup(STEP_OF_ROW[seen], attempt, in_doubt, wait, holder)


def _has_vanished(row: Any, now: float) -> bool:
    """Return whether the owner of a row has vanished."""
    return _seen(row, now)[0] is RowState.IN_DOUBT


def _seen(row: Any, now: float) -> tuple[RowState, float | None]:
    """Return what a row says, and when its lease ends."""
    until: datetime | None = row.lease_until
    ends = until.timestamp() if until is not None else None
    return row_of(row.state, row.owner, ends, now), ends


def _notice_values(entry: LogEntry, at: float) -> dict[str, Any]:
    """Return the columns for the notice: its topic, and from when on any process may send it."""
    if not entry.confirm_to:
        return {"confirm_to": None, "confirm_time": None}
    return {"confirm_to": entry.confirm_to, "confirm_time": utc_datetime(at)}


# Inserts where a rival may have been first ---------------------------------------------------


class LogInserts(Protocol):
    """Inserts into the consume log of one database, in the caller's transaction."""

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """Insert a row; False: a row exists and was not changed."""
        ...

    def all(self, connection: Connection, rows: Rows) -> bool:
        """Insert rows; False: some existed, so the transaction must be rolled back."""
        ...

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """Insert the missing rows of one group; return their identities."""
        ...

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """Insert a failed attempt, or turn an existing row into one; False: neither was allowed.

        An existing row must be RECEIVED, and without an owner or owned by `token`.
        """
        ...


class ConflictInserts:
    """For PostgreSQL and SQLite."""

    def __init__(self, table: Table, identity: str, dialect: str, told: Sequence[str]) -> None:
        log = table.c
        insert_of = postgresql.insert if dialect == "postgresql" else sqlite.insert
        new = insert_of(table)
        either = new.on_conflict_do_nothing()
        self._table = table
        self._identity = identity
        self._either = either
        self._many = either.returning(log[identity])
        self._as_arrays = dialect == "postgresql"
        # By the written columns, which depend on the known facts about the messages.
        self._one: dict[tuple[str, ...], PreparedStatement] = {}
        self._arrays: dict[tuple[str, ...], PreparedStatement] = {}
        self._failed: Any = new
        if told:
            self._failed = new.on_conflict_do_update(
                index_elements=[log.consumer_group, log[identity]],
                set_={
                    "attempt": _later(new.excluded.attempt, log.attempt),
                    "owner": null(),
                    "in_doubt": or_(new.excluded.in_doubt, log.in_doubt),
                    **{name: new.excluded[name] for name in told},
                },
                where=_may_fail(table),
            ).execution_options(preserve_rowcount=True)

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """See `LogInserts`."""
        columns = tuple(row)
        if columns not in self._one:
            values = {name: bindparam(name, type_=self._table.c[name].type) for name in columns}
            self._one[columns] = PreparedStatement(self._either.values(values))
        return self._one[columns].execute(connection, row).rowcount == 1

    def all(self, connection: Connection, rows: Rows) -> bool:
        """See `LogInserts`."""
        return len(self.some(connection, rows)) == len(rows)

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """See `LogInserts`."""
        if len(rows) == 1:
            return {rows[0][self._identity]} if self.one(connection, rows[0]) else set()
        if not self._as_arrays:
            return set(connection.execute(self._many, list(rows)).scalars())
        columns = tuple(rows[0])
        if columns not in self._arrays:
            self._arrays[columns] = PreparedStatement(self._of_arrays(columns))
        values = {name: rows[0][name] for name in columns if name in _SAME}
        values |= {name: [row[name] for row in rows] for name in columns if name not in _SAME}
        return set(self._arrays[columns].execute(connection, values).scalars())

    def _of_arrays(self, columns: tuple[str, ...]) -> Any:
        """Return the insert of many rows, with an array for each column; see `sql_arrays`."""
        types = {name: self._table.c[name].type for name in columns}
        row = rows_of_arrays({name: type_ for name, type_ in types.items() if name not in _SAME})
        values = [
            bindparam(name, type_=types[name]) if name in _SAME else row.c[name] for name in columns
        ]
        filled = postgresql.insert(self._table).from_select(
            list(columns), select(*values).order_by(row.c.place)
        )
        return filled.on_conflict_do_nothing().returning(self._table.c[self._identity])

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """See `LogInserts`."""
        changed: int = connection.execute(self._failed, row | {"token": token}).rowcount
        return changed == 1


class DuplicateInserts:
    """For MySQL and MariaDB."""

    def __init__(self, table: Table, identity: str, told: Sequence[str]) -> None:
        log = table.c
        self._identity = identity
        self._told = told
        self._insert = insert(table)
        # Locks existing rows without changing them; the owners are read afterwards.
        self._either = mysql.insert(table).on_duplicate_key_update(state=log.state)
        self._owners = select(log[identity], log.owner, log.state).where(
            log.consumer_group == bindparam("group"), is_among(log[identity], "ids", "mysql")
        )
        new_attempt: ColumnElement[int] = bindparam("new_attempt", type_=log.attempt.type)
        new_doubt: ColumnElement[bool] = bindparam("new_doubt", type_=Boolean)
        self._failed = (
            update(table)
            .where(
                log.consumer_group == bindparam("group"),
                log[identity] == bindparam("this"),
                _may_fail(table),
            )
            .values(
                attempt=_later(new_attempt, log.attempt),
                owner=null(),
                in_doubt=case((new_doubt, true()), else_=log.in_doubt),
                **{name: bindparam(f"new_{name}") for name in told},
            )
        )

    def one(self, connection: Connection, row: dict[str, Any]) -> bool:
        """See `LogInserts`."""
        return self._inserted(connection, row)

    def all(self, connection: Connection, rows: Rows) -> bool:
        """See `LogInserts`."""
        return self._inserted(connection, list(rows))

    def _inserted(self, connection: Connection, rows: Any) -> bool:
        try:
            connection.execute(self._insert, rows)
        except IntegrityError as error:
            if mysql_code(error) == _DUPLICATE_ENTRY:
                return False
            raise
        return True

    def some(self, connection: Connection, rows: Rows) -> set[str]:
        """See `LogInserts`."""
        connection.execute(self._either, list(rows))
        wanted = {row[self._identity]: (row["owner"], row["state"]) for row in rows}
        these = {"group": rows[0]["consumer_group"], "ids": sorted(wanted)}
        found = connection.execute(self._owners, these).all()
        return {identity for identity, *seen in found if tuple(seen) == wanted[identity]}

    def insert_failed(self, connection: Connection, row: dict[str, Any], token: str) -> bool:
        """See `LogInserts`."""
        connection.execute(self._either, row)
        values = {
            "group": row["consumer_group"],
            "this": row[self._identity],
            "new_attempt": row["attempt"],
            "new_doubt": row["in_doubt"],
            "token": token,
            **{f"new_{name}": row[name] for name in self._told},
        }
        return connection.execute(self._failed, values).rowcount == 1


def _later(new: ColumnElement[int], old: ColumnElement[int]) -> ColumnElement[int]:
    return case((new > old, new), else_=old)


def _may_fail(table: Table) -> ColumnElement[bool]:
    log = table.c
    ours = or_(log.owner.is_(None), log.owner == bindparam("token"))
    return and_(log.state == LogState.RECEIVED.value, ours)


def inserts_of(table: Table, identity: str, dialect: str, told: Sequence[str]) -> LogInserts:
    """Return the inserts for a dialect.

    Args:
        table: the consume log, or a table with the same columns and rules.
        identity: the column that, with the consumer group, is its primary key.
        dialect: SQLAlchemy's name of the dialect.
        told: the columns that a failed attempt writes unchanged.

    Raises:
        ConfigurationError: the database is not supported.
    """
    family = dialect_family(dialect)
    if family == "mysql":
        return DuplicateInserts(table, identity, told)
    if family not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"the database {dialect!r} is not supported; use postgresql+psycopg://…, "
            "mysql+pymysql://… or sqlite:///…"
        )
    return ConflictInserts(table, identity, family, told)
