"""The statements on the consume log, one sentence each.

Table `<prefix>consume_log`, see `sql_consume_log_table`. Its primary key (consumer group, message
id) decides between two owners: the second insert waits for the first one's commit, and then finds a
row. `claim` defines what a row means and how it may change. The conditions here repeat these rules,
so that a token that lost its claim changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, and_, bindparam, delete, null, select, update

from reliable_mq.database.attempt_list import UNCOUNTED_LENGTH_MAX as UNCOUNTED_MAX
from reliable_mq.database.attempt_list import AttemptEnd, line_of, line_of_lost
from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_prepared import Prepared, PreparedStatement
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.idempotency.claim import STEP_OF_ROW, ClaimStep, RowState, attempt_after, row_of
from reliable_mq.idempotency.sql_log_inserts import appended, inserts_of

NOTICE_LEASE_SECONDS = 5.0
"""Seconds for which only its consumer may send the notice of a consumed message."""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery, for the consume log. `token` names its owner; `attempt`: from 1.

    `confirm_to`: the topic where the stub's database, if it is another one, reads notices.
    `in_doubt`: as Redis knows, an earlier attempt began and its end is unknown. `key`: the business
    keys, for the log.
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
    key: str = ""


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
    told_of_failure: tuple[str, ...] = (
        *("lease_until", "confirm_to", "confirm_time", "note", "failure"),
    )
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
        self._take_over_lost = self._noting_the_lost(self._take_over)
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

        self._explain = self._explaining(this, received)

    def _explaining(self, *rows: Any) -> Any:
        """Return the statement that records the reason of an attempt that does not count."""
        log = self.table.c
        listed = appended(log.failures, length_max=UNCOUNTED_MAX)
        changes = {"failure": bindparam("why"), "failures": listed}
        return update(self.table).where(*rows, log.owner.is_(None)).values(changes)

    def _noting_the_lost(self, taking_over: Any) -> Any:
        """Return a take-over that also lists the attempt before, whose end is unknown."""
        return taking_over.values(failures=appended(self.table.c.failures))

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

    def behind_commit(self, connection: Connection, entry: LogEntry, now: float) -> Prepared | None:
        """Return the insert of a CONSUMED row, to be sent behind a COMMIT; None: insert it later.

        It has changed one row, or none if a row exists.
        """
        row = self._consumed(entry, now, is_told=bool(entry.confirm_to))
        return self._inserts.behind_commit(connection, row)

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
        # so that two batches lock in the same order
        return sorted(rows, key=lambda row: str(row[self.identity]))

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
        if self.told_of_failure and any(map(_lost, entries)):
            lines = [{"failures": line_of_lost(_lost(entry), now)} for entry in entries]
            rows = [row | line for row, line in zip(rows, lines, strict=True)]
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
                lost = row.attempt if _has_vanished(row, now) else _lost(entry, row.attempt)
                self._take(connection, entry, values, line_of_lost(lost, now))
        gone = [entry for entry in there if entry.message_id not in answers]
        if gone:  # retention has just removed them
            answers |= self.receive(connection, gone, now, lease, last)
        return answers

    def _take(
        self, connection: Connection, entry: LogEntry, values: dict[str, Any], lost: str | None
    ) -> None:
        values |= _this(entry) | self._taker(entry)
        if lost is None or not self.told_of_failure:
            connection.execute(self._take_over, values)
        else:
            connection.execute(self._take_over_lost, values | {"line": lost})

    def consume(self, connection: Connection, entry: LogEntry, now: float) -> bool:
        """Turn our RECEIVED row into CONSUMED; False: the claim is no longer ours."""
        values = _this(entry) | {"at": utc_datetime(now)} | self._consumer(entry, now)
        return self._consume.change(connection, values) == 1

    def fail(
        self,
        connection: Connection,
        entry: LogEntry,
        now: float,
        retry_at: float,
        note: str = "",
        *,
        failure: str = "",
        end: AttemptEnd = AttemptEnd.FAILED,
    ) -> bool:
        """Record a failed attempt and when the next one is expected.

        False: nothing was written, because the row says CONSUMED or another owner has the claim.
        `note` says why there is no next attempt, `failure` why this one failed, `end` how it ended.
        """
        row = self._row(entry, LogState.RECEIVED, now, owner=None) | _notice_values(entry, now)
        row["note"], row["failure"] = note or None, failure or None
        row["lease_until"] = utc_datetime(retry_at)
        row["failures"] = line_of(entry.attempt, now, end, failure or note)
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

    def explain(
        self, connection: Connection, entry: LogEntry, now: float, retry_at: float, failure: str
    ) -> None:
        """Record why an attempt without an effect does not count, and when the next is expected.

        If the message has no row yet, it gets one in which this attempt is not counted.
        """
        uncounted = msgspec.structs.replace(entry, attempt=entry.attempt - 1)
        row = self._row(uncounted, LogState.RECEIVED, now, owner=None)
        line = line_of(entry.attempt, now, AttemptEnd.POSTPONED, failure)
        row |= {"lease_until": utc_datetime(retry_at), "failure": failure, "failures": line}
        if not self._inserts.one(connection, row):
            connection.execute(self._explain, _of(entry) | {"why": failure, "line": line})

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


def _of(entry: LogEntry) -> dict[str, Any]:
    return {"group": entry.group, "message": entry.message_id}


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


def _lost(entry: LogEntry, counted: int = 0) -> int:
    """Return the number of an attempt in doubt that only Redis has counted; 0: there is none."""
    return entry.attempt - 1 if entry.in_doubt and entry.attempt - 1 > counted else 0


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
