"""The statements on the consume log, one sentence each.

Table `<prefix>consume_log`, see `sql_tables`. Its primary key (consumer group, message id) decides
between two owners: the second insert waits for the first one's commit and then finds a row. What a
found row means, and what may become of it, is `claim`'s to say; the conditions here repeat it so
that a token that lost its claim changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.claim import (
    STEP_OF_ROW,
    LogState,
    Row,
    Step,
    attempt_after,
    row_of,
)
from reliable_mq.idempotency.sql_tables import NOTE_LENGTH_MAX
from reliable_mq.sql_types import is_among, utc_datetime

NOTICE_LEASE_SECONDS = 5.0
"""How long it is its consumer's alone to tell another database what was consumed."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery, as the consume log sees it. `token` names its owner; `attempt`: from 1.

    `confirm_to`: where the database of its stub reads notices, when that is another one.
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


class Found(msgspec.Struct, frozen=True):
    """What the log says to a delivery: the next step and, for an attempt, its number.

    `in_doubt`: the attempt before it was never heard of again. `wait`: what is left of another's
    lease, seconds.
    """

    step: Step
    attempt: int = 1
    in_doubt: bool = False
    wait: float = 0.0


class SqlConsumeLog:
    """The consume log of one database. All methods work in the caller's transaction."""

    def __init__(self, table: Table, dialect: str) -> None:
        self.table = table
        log = table.c
        insert = _insert_of(dialect)(table)
        self._insert = insert.on_conflict_do_nothing()
        self._insert_one = self._insert.execution_options(preserve_rowcount=True)
        self._insert_many = self._insert.returning(log.message_id)
        this = and_(
            log.consumer_group == bindparam("group"), log.message_id == bindparam("message")
        )
        received = log.state == LogState.RECEIVED.value
        ours = log.owner == bindparam("token")
        self._find = (
            select(log.message_id, log.state, log.attempt, log.owner, log.lease_until)
            .where(
                log.consumer_group == bindparam("group"),
                is_among(log.message_id, "messages", dialect),
            )
            .order_by(log.message_id)
        )
        self._lock = self._find.with_for_update()
        self._take_over = (
            update(table)
            .where(this, received)
            .values(
                owner=bindparam("token"),
                attempt=bindparam("new_attempt"),
                lease_until=bindparam("until"),
            )
        )
        self._consume = (
            update(table)
            .where(this, received, ours)
            .values(
                state=LogState.CONSUMED.value,
                consume_date=bindparam("at"),
                lease_until=null(),
                confirm_to=bindparam("tell_to"),
                confirm_time=bindparam("tell_at"),
            )
        )
        self._renew = (
            update(table).where(this, received, ours).values(lease_until=bindparam("until"))
        )
        self._release = (
            update(table)
            .where(this, received, ours)
            .values(owner=null(), attempt=log.attempt - 1, lease_until=bindparam("until"))
        )
        self._fail = self._failing(insert, received).execution_options(preserve_rowcount=True)

    def _failing(self, insert: Any, received: ColumnElement[bool]) -> Any:
        log, new = self.table.c, insert.excluded
        return insert.on_conflict_do_update(
            index_elements=[log.consumer_group, log.message_id],
            set_={
                "attempt": case((new.attempt > log.attempt, new.attempt), else_=log.attempt),
                "owner": null(),
                "lease_until": new.lease_until,
                "confirm_to": new.confirm_to,
                "confirm_time": new.confirm_time,
                "note": new.note,
            },
            where=and_(received, or_(log.owner.is_(None), log.owner == bindparam("token"))),
        )

    def insert_consumed(self, connection: Connection, entry: Entry, now: float) -> bool:
        """Insert a row that says CONSUMED; False: a row is there, which was not touched."""
        row = _consumed(entry, now, is_told=bool(entry.confirm_to))
        return connection.execute(self._insert_one, row).rowcount == 1

    def insert_all_consumed(
        self, connection: Connection, entries: Sequence[Entry], now: float
    ) -> bool:
        """Insert rows that say CONSUMED; False: some were there, the transaction is of no use."""
        is_told = any(entry.confirm_to for entry in entries)
        rows = [_consumed(entry, now, is_told=is_told) for entry in entries]
        return len(self._inserted(connection, rows)) == len(rows)

    def _inserted(self, connection: Connection, rows: list[dict[str, Any]]) -> set[str]:
        rows.sort(key=lambda row: str(row["message_id"]))  # two batches wait in one order
        if len(rows) == 1:
            inserted = connection.execute(self._insert_one, rows[0]).rowcount
            return {rows[0]["message_id"]} if inserted == 1 else set()
        return set(connection.execute(self._insert_many, rows).scalars())

    def found(self, connection: Connection, entry: Entry, now: float) -> Found | None:
        """Return what the row of this delivery says, without changing it; None: there is none."""
        for _, row in self._rows(connection, self._find, [entry]):
            return _judge(entry, row, now)
        return None

    def receive(
        self, connection: Connection, entries: Sequence[Entry], now: float, lease: float
    ) -> dict[str, Found]:
        """Begin attempts: RECEIVED rows with our token. To be committed before the handler runs."""
        until = utc_datetime(now + lease)
        rows = [
            _row(entry, LogState.RECEIVED, now, owner=entry.token) | {"lease_until": until}
            for entry in entries
        ]
        inserted = self._inserted(connection, rows)
        answers = {
            entry.message_id: Found(Step.RECEIVE_FIRST, entry.attempt)
            for entry in entries
            if entry.message_id in inserted
        }
        there = [entry for entry in entries if entry.message_id not in inserted]
        for entry, row in self._rows(connection, self._lock, there):
            found = _judge(entry, row, now)
            answers[entry.message_id] = found
            if found.step is Step.RECEIVE_FIRST:
                connection.execute(
                    self._take_over,
                    _this(entry) | {"new_attempt": found.attempt, "until": until},
                )
        return answers

    def consume(self, connection: Connection, entry: Entry, now: float) -> bool:
        """Turn our RECEIVED row into CONSUMED; False: the claim is no longer ours."""
        telling = _telling(entry, now + NOTICE_LEASE_SECONDS)
        values = _this(entry) | {
            "at": utc_datetime(now),
            "tell_to": telling["confirm_to"],
            "tell_at": telling["confirm_time"],
        }
        return connection.execute(self._consume, values).rowcount == 1

    def fail(
        self, connection: Connection, entry: Entry, now: float, retry_at: float, note: str = ""
    ) -> bool:
        """Record a failed attempt and when the next one is expected.

        False: nothing was written, because the row says CONSUMED or the claim is another's. `note`
        says why there is no next one.
        """
        row = _row(entry, LogState.RECEIVED, now, owner=None) | _telling(entry, now)
        row["note"] = note[:NOTE_LENGTH_MAX] or None
        values = row | {"lease_until": utc_datetime(retry_at), "token": entry.token}
        return connection.execute(self._fail, values).rowcount == 1

    def release(self, connection: Connection, entry: Entry, retry_at: float) -> None:
        """Take an attempt back that ended without an effect and does not count, if it is ours."""
        values = _this(entry) | {"until": utc_datetime(retry_at)}
        connection.execute(self._release, values)

    def renew(self, connection: Connection, entries: Sequence[Entry], until: float) -> None:
        """Let the leases of running attempts end later."""
        values = [_this(entry) | {"until": utc_datetime(until)} for entry in entries]
        connection.execute(self._renew, values)

    @staticmethod
    def _rows(
        connection: Connection, statement: Any, entries: Sequence[Entry]
    ) -> list[tuple[Entry, Any]]:
        if not entries:
            return []
        by_id = {entry.message_id: entry for entry in entries}
        rows = connection.execute(
            statement, {"group": entries[0].group, "messages": sorted(by_id)}
        ).all()
        return [(by_id[row.message_id], row) for row in rows]


def _judge(entry: Entry, row: Any, now: float) -> Found:
    until: datetime | None = row.lease_until
    ends = until.timestamp() if until is not None else None
    seen = row_of(row.state, row.owner, ends, now)
    if seen is Row.RUNNING and row.owner == entry.token:
        return Found(Step.RECEIVE_FIRST, row.attempt)  # our own commit, whose answer was lost
    wait = ends - now if seen is Row.RUNNING and ends is not None else 0.0
    attempt = attempt_after(seen, row.attempt, entry.attempt)
    return Found(STEP_OF_ROW[seen], attempt, seen is Row.IN_DOUBT, wait)


def _this(entry: Entry) -> dict[str, Any]:
    return {"group": entry.group, "message": entry.message_id, "token": entry.token}


def _row(entry: Entry, state: LogState, now: float, owner: str | None) -> dict[str, Any]:
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
    }


def _consumed(entry: Entry, now: float, *, is_told: bool) -> dict[str, Any]:
    row = _row(entry, LogState.CONSUMED, now, owner=entry.token)
    return row | _telling(entry, now + NOTICE_LEASE_SECONDS) if is_told else row


def _telling(entry: Entry, at: float) -> dict[str, Any]:
    """Return the columns that say who is to be told, and from when on by anybody."""
    if not entry.confirm_to:
        return {"confirm_to": None, "confirm_time": None}
    return {"confirm_to": entry.confirm_to, "confirm_time": utc_datetime(at)}


def _insert_of(dialect: str) -> Any:
    """Return the insert that knows ON CONFLICT.

    Raises:
        ConfigurationError: when the database has no such thing, or nobody has tried it.
    """
    known = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    if dialect not in known:
        raise ConfigurationError(
            f"the database {dialect!r} is not supported; use postgresql+psycopg://… or sqlite:///…"
        )
    return known[dialect]
