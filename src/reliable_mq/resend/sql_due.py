"""Claim due stubs. Receives a request, returns stubs that a scheduler owns until its lease expires.

A claim sets `resend_time` to the end of the lease, and writes the owner. No other scheduler finds
the stub until then. If a scheduler dies, its stubs become due when the lease expires. Every write
checks the owner, so a scheduler cannot write to a stub that another one has claimed since.
PostgreSQL and MySQL skip rows that another scheduler is claiming at this moment. SQLite has only
one writer at a time.

A claim to send counts the send before it begins. So a message that kills its sender uses up its
sends, too. Its stub then has an owner with an expired lease: it is a suspect, and claimed alone.

A claim never reads more rows than its limit. Every kind has a partial index by topic and time. A
stub that may not be sent yet gets a later due time from the scheduler that claimed it.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    case,
    literal_column,
    not_,
    null,
    select,
    true,
    update,
)

from reliable_mq.confirm.sql_confirmation import SqlConfirmation
from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_agenda import agenda_of
from reliable_mq.database.sql_mysql_agenda import mysql_agenda_of
from reliable_mq.database.sql_stub_table import UNCONFIRMED, waiting_kinds
from reliable_mq.database.sql_types import ANY_TEXT, MYSQL, is_among, utc_datetime
from reliable_mq.outbox.sql_stub_rows import stub_columns, stub_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.due import ClaimedStubs, ClaimRequest, DueKind, DueTopic, HeldStub
from reliable_mq.resend.sql_opening import is_free, latest_wait

LogView = tuple[bool, bool]
"""(the consume log says CONSUMED, an attempt is running)"""

_NOT_SENT_YET = frozenset({DueKind.UNSENT, DueKind.SUSPECT})
_MYSQL_INDEX = {DueKind.UNSENT: "unsent", DueKind.SUSPECT: "unsent", DueKind.SENT: "sent"}


class SqlDue:
    """The claims of one database. Every method is one transaction."""

    def __init__(self, stubs: SqlStubs, logs: Table, confirmation: SqlConfirmation) -> None:
        self._engine = stubs.engine.execution_options(**ANY_TEXT)
        self._confirmation = confirmation
        table, dialect = stubs.table, stubs.engine.dialect.name
        stub = table.c
        kinds = waiting_kinds(table)
        self._agenda = (
            mysql_agenda_of(table)
            if dialect in MYSQL
            else agenda_of(table, kinds, stub.resend_time)
        )
        self._due = {
            (DueKind(name), newest): self._due_first(table, name, kind, newest=newest)
            for name, kind in kinds.items()
            for newest in (False, True)
        }
        # Only stubs without an owner: the others may be suspects, which are claimed alone.
        early = (kinds["unsent"], is_free(table), stub.resend_time <= bindparam("at"))
        self._early = self._in_order(table, "unsent", *early, stub.topic == bindparam("topic"))
        of_rows = is_among(stub.seq, "seqs", dialect)
        heads = select(*stub_columns(table)).where(of_rows, *early).order_by(stub.seq)
        self._heads = heads.with_for_update(skip_locked=True)
        self._first_outsiders = self._first_unsent_elsewhere(table, dialect)
        self._blockers = select(stub.seq, stub.resend_time, stub.lease_until).where(of_rows)
        claim = (
            update(table)
            .where(of_rows)
            .values(
                owner=bindparam("me"),
                lease_until=bindparam("until"),
                resend_time=bindparam("until"),
                missed=true(),
            )
        )
        self._claim, self._claim_to_send = claim, claim.values(count=stub.count + 1)
        ours = (is_among(stub.message_id, "ids", dialect), stub.owner == bindparam("me"))
        # A consumer group may have given it up since the claim: then it gets no new due time.
        next_time: ColumnElement[datetime] = bindparam("next_time", type_=stub.resend_time.type)
        let_go = update(table).where(*ours, stub.status == UNCONFIRMED)
        let_go = let_go.values(owner=null(), lease_until=null())
        self._rest = let_go.values(resend_time=case((stub.given_up, null()), else_=next_time))
        self._untried = self._rest.values(count=stub.count - 1)
        self._give_up = let_go.values(
            given_up=true(), resend_time=null(), update_date=bindparam("at")
        )
        # A stub is not sent if it was settled, given up, or claimed by another scheduler since.
        self._going = (
            select(stub.message_id, stubs.blocked.label("b"), stubs.overtaking.label("o"))
            .where(*ours, stub.status == UNCONFIRMED, not_(stub.given_up))
            .with_for_update()
        )
        self._again = (
            update(table)
            .where(*ours)
            .values(
                count=stub.count + 1,
                broker_name=null(),
                queue_id=null(),
                offset=null(),
                lease_until=bindparam("until"),
                resend_time=bindparam("until"),
            )
        )
        self._views = select(
            logs.c.message_id, logs.c.consumer_group, logs.c.state, logs.c.lease_until
        ).where(is_among(logs.c.message_id, "ids", dialect))

    @staticmethod
    def _due_first(table: Table, name: str, kind: ColumnElement[bool], *, newest: bool) -> Any:
        """Return the statement that locks the due and free stubs of a kind and topic."""
        stub = table.c
        due = (kind, stub.topic == bindparam("topic"), stub.resend_time <= bindparam("at"))
        return SqlDue._in_order(table, name, *due, newest=newest)

    @staticmethod
    def _in_order(
        table: Table, name: str, *wanted: ColumnElement[bool], newest: bool = False
    ) -> Any:
        """Return the statement that locks stubs in the order of their due time, or its reverse."""
        stub = table.c
        found = select(*stub_columns(table)).where(*wanted)
        # Without the hint, MySQL may read all due stubs of other kinds, too.
        found = found.prefix_with(
            f"/*+ INDEX({table.name} {table.name}_{_MYSQL_INDEX[DueKind(name)]}) */",
            dialect="mysql",
        )
        order = (
            (stub.resend_time.desc(), stub.seq.desc()) if newest else (stub.resend_time, stub.seq)
        )
        return found.order_by(*order).limit(bindparam("limit")).with_for_update(skip_locked=True)

    @staticmethod
    def _first_unsent_elsewhere(table: Table, dialect: str) -> Any:
        """Return the statement that finds the first unsent stub of each key outside of the batch.

        Parameters: `seqs` has the row of one stub for each key, `batch` the rows of all stubs.
        """
        stub, other = table.c, table.alias("other").c
        first = (
            select(other.seq)
            .where(
                other.topic == stub.topic,
                other.ordering_key == stub.ordering_key,
                other.ordering_key != literal_column("''"),
                other.status == UNCONFIRMED,
                other.broker_name.is_(None),
                not_(other.given_up),
                not_(is_among(other.seq, "batch", dialect)),
            )
            # The index has the broker first. Here the broker is always null; it is in ORDER BY so
            # that the index is used.
            .order_by(other.broker_name, other.seq)
            .limit(literal_column("1"))
            .correlate(table)
            .scalar_subquery()
        )
        return select(stub.ordering_key, first.label("seq")).where(
            is_among(stub.seq, "seqs", dialect)
        )

    def agenda(self) -> list[DueTopic]:
        """Return when the first stub of each kind and topic is due, now or in the future."""
        with self._engine.begin() as connection:
            rows = connection.execute(self._agenda).all()
        return [
            DueTopic(DueKind(row.kind), row.topic, row.first_time.timestamp())
            for row in rows
            if row.first_time is not None
        ]

    def claim(self, asked: ClaimRequest) -> ClaimedStubs:
        """Claim at most `asked.limit` stubs of a kind and topic that are due and free."""
        until = {"me": asked.owner, "until": utc_datetime(asked.now + asked.lease)}
        with self._engine.begin() as connection:
            stubs = self._found(connection, asked)
            # A used-up stub is escalated only when it is due, after its last wait.
            used_up = [s for s in stubs if s.count >= asked.count_max and not asked.is_early]
            rest = [stub for stub in stubs if stub.count < asked.count_max]
            held: list[HeldStub] = []
            if asked.kind in _NOT_SENT_YET:
                held = self._held(connection, rest, asked.now)
                waits = {each.stub.seq for each in held}
                rest = [stub for stub in rest if stub.seq not in waits]
                if asked.newest:
                    held = []  # they stay unchanged: the oldest of their key come first
                if asked.is_probe and held:
                    rest += self._free_heads(connection, held, asked)
                rest = _first_of(rest, asked.sent_max)
                if rest:
                    seqs = [stub.seq for stub in rest]
                    connection.execute(self._claim_to_send, until | {"seqs": seqs})
            looked_at = used_up + [each.stub for each in held]
            if asked.kind not in _NOT_SENT_YET:
                looked_at += rest
            if looked_at:
                connection.execute(self._claim, until | {"seqs": [s.seq for s in looked_at]})
        return ClaimedStubs(rest, held, used_up, len(stubs))

    def _found(self, connection: Connection, asked: ClaimRequest) -> list[Stub]:
        """Lock and return the requested stubs, including those that may not be sent yet."""
        at = utc_datetime(asked.now)
        values = {"topic": asked.topic, "limit": asked.limit}
        if asked.is_early:
            values |= {"at": utc_datetime(latest_wait(asked.now)), "now": at}
            return [stub_of(row) for row in connection.execute(self._early, values)]
        due = self._due[asked.kind, asked.newest]
        return [stub_of(row) for row in connection.execute(due, values | {"at": at})]

    def _held(self, connection: Connection, stubs: Sequence[Stub], now: float) -> list[HeldStub]:
        """Return the stubs that wait for an earlier stub of their key outside of `stubs`."""
        first_of_key = {
            stub.ordering_key: stub.seq for stub in reversed(stubs) if stub.ordering_key
        }
        if not first_of_key:
            return []
        keys = {"seqs": list(first_of_key.values()), "batch": [stub.seq for stub in stubs]}
        found = connection.execute(self._first_outsiders, keys)
        outsiders = {row.ordering_key: row.seq for row in found if row.seq is not None}
        held = [
            stub
            for stub in stubs
            if stub.ordering_key and outsiders.get(stub.ordering_key, stub.seq) < stub.seq
        ]
        if not held:
            return []
        blockers = {
            row.seq: row
            for row in connection.execute(self._blockers, {"seqs": sorted(outsiders.values())})
        }
        at = utc_datetime(now)
        behind = [outsiders[stub.ordering_key] for stub in held]
        return [
            HeldStub(stub, _until(blockers.get(seq), at), seq)
            for stub, seq in zip(held, behind, strict=True)
        ]

    def _free_heads(
        self, connection: Connection, held: Sequence[HeldStub], asked: ClaimRequest
    ) -> list[Stub]:
        """Return the stubs that held stubs wait for, if they are due and free.

        A used-up stub is not returned: a normal claim finds it when it is due.
        """
        at = latest_wait(asked.now) if asked.is_early else asked.now
        values = {
            "seqs": sorted({each.behind for each in held}),
            "at": utc_datetime(at),
            "now": utc_datetime(asked.now),
        }
        heads = [stub_of(row) for row in connection.execute(self._heads, values)]
        return [head for head in heads if head.count < asked.count_max]

    def begin_again(
        self, message_ids: Sequence[str], owner: str, until: float
    ) -> tuple[set[str], set[str]]:
        """Mark lost stubs as unsent and count their next send; return (ids to send, ids held).

        `owner` owns the stubs to send until the time `until` (seconds). Unsent stubs hold the later
        stubs of their key until they are sent. A stub is held if it would overtake an earlier,
        unsettled stub of its key, because that one could not be consumed after it. An id that is in
        neither set was settled or given up since, or belongs to another owner.
        """
        values: dict[str, object] = {"ids": list(message_ids), "me": owner}
        with self._engine.begin() as connection:
            rows = connection.execute(self._going, values).all()
            held = {row.message_id for row in rows if row.b or row.o}
            going = {row.message_id for row in rows} - held
            if going:
                lease = {"ids": sorted(going), "until": utc_datetime(until)}
                connection.execute(self._again, values | lease)
        return going, held

    def views(self, message_ids: Collection[str], now: float) -> dict[tuple[str, str], LogView]:
        """Return the consume logs of messages by (message id, group), including notices."""
        ids, at = list(message_ids), utc_datetime(now)
        with self._engine.begin() as connection:
            rows = [
                *connection.execute(self._views, {"ids": ids}),
                *self._confirmation.notices_of(connection, ids),
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

    def consumed_elsewhere(self, message_ids: Collection[str]) -> dict[str, list[str]]:
        """Return by message id the groups of other databases whose notice says CONSUMED."""
        found: dict[str, list[str]] = {}
        with self._engine.begin() as connection:
            for row in self._confirmation.notices_of(connection, list(message_ids)):
                if row.state == LogState.CONSUMED:
                    found.setdefault(row.message_id, []).append(row.consumer_group)
        return found

    def confirm(self, message_ids: Sequence[str], now: float) -> None:
        """Confirm stubs whose required groups have all consumed them."""
        with self._engine.begin() as connection:
            self._confirmation.catch_up(connection, message_ids, now)

    def give_up(self, message_ids: Sequence[str], owner: str, now: float) -> None:
        """Give stubs up that wait for no group. Each group that is missing was escalated before."""
        values = {"ids": list(message_ids), "me": owner, "at": utc_datetime(now)}
        with self._engine.begin() as connection:
            connection.execute(self._give_up, values)

    def postpone(
        self, message_ids: Sequence[str], owner: str, next_time: float, *, untried: bool = False
    ) -> None:
        """Release stubs; they are due again at `next_time`. `untried`: do not count the send."""
        values = {"ids": list(message_ids), "me": owner, "next_time": utc_datetime(next_time)}
        with self._engine.begin() as connection:
            connection.execute(self._untried if untried else self._rest, values)


def _first_of(stubs: Sequence[Stub], most: int | None) -> list[Stub]:
    """Return the first `most` stubs in the order of their rows: so the order of a key holds."""
    return sorted(stubs, key=lambda stub: stub.seq)[:most] if most is not None else list(stubs)


def _until(blocker: Any, at: datetime) -> float | None:
    """Return when a stub that others wait for is due. None: it waits for a person."""
    if blocker is None or (blocker.lease_until is not None and blocker.lease_until > at):
        return at.timestamp()  # another scheduler is sending it; that is done soon
    return None if blocker.resend_time is None else float(blocker.resend_time.timestamp())
