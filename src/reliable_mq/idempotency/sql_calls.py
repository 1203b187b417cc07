"""The statements on idempotent calls, one sentence each.

Table `<prefix>idempotent_call`, see `sql_key_tables`. The primary key (scope, key) decides between
two callers: the second insert waits for the first one's commit, and then finds a row. The rows
follow the same state table as the consume log (`claim.ROW_TRANSITIONS`).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.idempotency.claim import RowState, row_of
from reliable_mq.watched_time import WatchedTime, unwatched_max


class KeyedCall(msgspec.Struct, frozen=True):
    """One call of an idempotent function. `token` names its owner; `window`: in seconds."""

    scope: str
    key_digest: str
    shown: str
    fingerprint: str | None
    token: str
    window: float


class CallDecision(Enum):
    """What the table says about a call."""

    RUN = "run"  # the row is ours
    REPLAY = "replay"  # the call is done: return its stored result
    RUNNING = "running"  # another owner is running it
    REUSED = "reused"  # the key belongs to other arguments


class CallFound(msgspec.Struct, frozen=True):
    """The answer, and its details.

    RUN has `attempt`, and `in_doubt` (an earlier attempt's end is unknown). RUNNING has `wait`, the
    rest of the other owner's lease in seconds. REPLAY has `result` (None: it could not be stored).
    """

    answer: CallDecision
    attempt: int = 1
    in_doubt: bool = False
    wait: float = 0.0
    result: bytes | None = None


class SqlCalls:
    """The idempotent calls of one database. All methods work in the caller's transaction.

    Args:
        table: the calls.
        watched: the known facts about the clock: no key is forgotten because of a clock alone.
    """

    def __init__(self, table: Table, watched: Table) -> None:
        self.table = table
        self._watching = SqlWatchedTime(watched)
        call = table.c
        this = and_(call.scope == bindparam("in_scope"), call.key_digest == bindparam("digest"))
        ours = and_(
            this,
            call.owner == bindparam("token"),
            call.state == LogState.RECEIVED.value,
        )
        self._insert = insert(table)
        self._find = select(
            *(call.state, call.attempt, call.owner, call.lease_until, call.in_doubt),
            *(call.fingerprint, call.result, call.finish_date, call.expire_date),
        ).where(this)
        self._lock = self._find.with_for_update()
        self._take_over = (
            update(table)
            .where(this)
            .values(
                state=LogState.RECEIVED.value,
                owner=bindparam("token"),
                lease_until=bindparam("until"),
                attempt=bindparam("new_attempt"),
                in_doubt=bindparam("doubt"),
                fingerprint=bindparam("print"),
                result=null(),
                create_date=bindparam("at"),
                finish_date=null(),
                expire_date=bindparam("expires"),
            )
        )
        self._finish = (
            update(table)
            .where(ours)
            .values(
                state=LogState.CONSUMED.value,
                result=bindparam("returned"),
                lease_until=null(),
                finish_date=bindparam("at"),
                expire_date=bindparam("expires"),
            )
        )
        self._release = update(table).where(ours).values(owner=null(), lease_until=null())
        self._renew = update(table).where(ours).values(lease_until=bindparam("until"))
        # Rows in doubt stay: it is not known yet how the call ended.
        settled = or_(call.state == LogState.CONSUMED.value, call.owner.is_(None))
        self._expired = (
            select(call.scope, call.key_digest)
            .where(call.expire_date <= bindparam("at"), settled)
            .order_by(call.expire_date)
            .limit(bindparam("most"))
        )
        self._remove = delete(table).where(this, call.expire_date <= bindparam("at"), settled)

    def begin(
        self,
        connection: Connection,
        call: KeyedCall,
        now: float,
        lease: float,
        watched: Callable[[], WatchedTime],
    ) -> CallFound:
        """Claim a call, or return why it is not ours. Its row exists when this is committed.

        `watched`: returns what this process knows of the clock. `now` may be older than that: the
        insert may have waited for a rival.
        """
        at, until = utc_datetime(now), utc_datetime(now + lease)
        expires = utc_datetime(now + call.window)
        row = connection.execute(self._find, _this(call)).one_or_none()
        if row is None:
            try:
                with connection.begin_nested():
                    connection.execute(
                        self._insert,
                        {
                            "scope": call.scope,
                            "key_digest": call.key_digest,
                            "call_key": call.shown,
                            "fingerprint": call.fingerprint,
                            "state": LogState.RECEIVED.value,
                            "attempt": 1,
                            "owner": call.token,
                            "lease_until": until,
                            "in_doubt": False,
                            "create_date": at,
                            "expire_date": expires,
                        },
                    )
            except IntegrityError:
                row = connection.execute(self._lock, _this(call)).one_or_none()
            else:
                return CallFound(CallDecision.RUN)
        elif row.state != LogState.CONSUMED or row.expire_date.timestamp() <= now:
            row = connection.execute(self._lock, _this(call)).one_or_none()
        if row is None:  # it was just removed: its window had passed
            return CallFound(CallDecision.RUNNING)
        is_forgotten = self._is_forgotten(connection, row, now, watched)
        found = _judge(row, call, now, is_forgotten=is_forgotten)
        if found.answer is CallDecision.RUN:
            values = {"new_attempt": found.attempt, "doubt": found.in_doubt, "until": until}
            values |= {"print": call.fingerprint, "at": at, "expires": expires}
            connection.execute(self._take_over, _this(call) | {"token": call.token} | values)
        return found

    def _is_forgotten(
        self,
        connection: Connection,
        row: Any,
        now: float,
        watched: Callable[[], WatchedTime],
    ) -> bool:
        """Return whether a call's window has passed, by the clock and by watched time.

        Two have watched the clock: this process, and retention, even if its last look is long ago.
        Retention's last look is compared with the present clock, because this process may have
        started with a wrong clock. In the same run of the machine, the ticks say how much time
        passed. In another run, a short gap counts, and the time that this process has watched.
        """
        if not _has_expired(row, now) or row.finish_date is None:
            return _has_expired(row, now)
        finished = row.finish_date.timestamp()
        window = row.expire_date.timestamp() - finished
        mine, theirs = watched(), self._watching.load(connection)
        dates = [mine.before(window)]
        if theirs is not None:
            believed = unwatched_max(window) + mine.watched - mine.stretches[0].watched
            dates.append(theirs.looked(mine.last, unwatched_max=believed).before(window))
        return bool(finished <= min(dates))

    def finish(
        self, connection: Connection, call: KeyedCall, result: bytes | None, now: float
    ) -> bool:
        """Store the result of a call; False: the claim is no longer ours."""
        values: dict[str, Any] = {"token": call.token, "returned": result}
        values |= {"at": utc_datetime(now), "expires": utc_datetime(now + call.window)}
        return connection.execute(self._finish, _this(call) | values).rowcount == 1

    def release(self, connection: Connection, call: KeyedCall) -> None:
        """Release our key after a failed call; the next call may run at once."""
        connection.execute(self._release, _this(call) | {"token": call.token})

    def renew(self, connection: Connection, calls: Sequence[KeyedCall], until: float) -> None:
        """Extend the leases of running calls."""
        values = [
            _this(call) | {"token": call.token, "until": utc_datetime(until)} for call in calls
        ]
        connection.execute(self._renew, values)

    def remove_expired(self, connection: Connection, now: float, limit: int) -> int:
        """Remove up to `limit` calls whose window has passed; return how many were found."""
        at = utc_datetime(now)
        rows = connection.execute(self._expired, {"at": at, "most": limit}).all()
        if rows:
            values = [{"in_scope": row.scope, "digest": row.key_digest, "at": at} for row in rows]
            connection.execute(self._remove, values)
        return len(rows)


def _has_expired(row: Any, now: float) -> bool:
    return bool(row.state == LogState.CONSUMED and row.expire_date.timestamp() <= now)


def _judge(row: Any, call: KeyedCall, now: float, *, is_forgotten: bool) -> CallFound:
    ends = row.lease_until.timestamp() if row.lease_until is not None else None
    seen = row_of(row.state, row.owner, ends, now)
    if is_forgotten:
        return CallFound(CallDecision.RUN)  # a new call
    has_no_effect = seen is RowState.FAILED and not row.in_doubt  # so its key may be used again
    if row.fingerprint != call.fingerprint and not has_no_effect:
        return CallFound(CallDecision.REUSED)
    if seen is RowState.CONSUMED:
        return CallFound(CallDecision.REPLAY, result=row.result)
    if seen is RowState.RUNNING and row.owner != call.token:
        return CallFound(CallDecision.RUNNING, wait=(ends or now) - now)
    in_doubt = row.in_doubt or seen is RowState.IN_DOUBT
    return CallFound(CallDecision.RUN, row.attempt + 1, in_doubt)


def _this(call: KeyedCall) -> dict[str, Any]:
    return {"in_scope": call.scope, "digest": call.key_digest}
