"""Carry out a plan of repairs, with audit, while the application is running.

A batch of repairs is one transaction. It locks the consume logs of its messages first, then their
stubs, in the same order as consumers. It waits for no lock: a locked stub is in use, so it is not
repaired. A stub that changed since the run is not repaired either. If the same plan is done twice,
the second time changes nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    and_,
    bindparam,
    inspect,
    null,
    select,
    update,
)

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_confirmation_table import confirmation_table
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_people_tables import audit_table, escalation_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.database.sql_types import dialect_family, is_among, set_table_options, utc_datetime
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit
from reliable_mq.escalate.sql_escalations import SqlEscalations
from reliable_mq.outbox.sql_attempt_restarts import AttemptRestarts, sent_again, unsent
from reliable_mq.reconcile.databases.sql_connection import open_engine
from reliable_mq.reconcile.repairs.repair import AGAIN, UNBOUNDED, Repair, RepairAction, RepairRate
from reliable_mq.reconcile.repairs.sql_obstacles import (
    CONSUMED,
    GONE,
    LOCKED,
    is_in_hand,
    obstacle,
)

ACTOR = "reconcile"
_BATCH = 500


@dataclass(frozen=True)
class RepairOrder:
    """The settings of a repair.

    Attributes:
        urls: the URLs of the databases.
        prefix: the prefix of the tables.
        run_id: the id of the run, for the audit.
        past: a lease that ended before this moment had expired by every clock when the run judged.
        broker_name: the broker of records that do not name theirs. None: unknown.
        rate: the most stubs in a second. Default: no limit.
        is_following: the run repeats itself. Then the repair keeps the scheduler's waits, and
            does not repair stubs that were escalated.
        clock: this machine's clock, seconds since the epoch.
        ticks: a monotonic clock, in seconds.
        sleep: waits for some seconds.
        actor: the person who repairs, for the audit. Default: the run itself.
        why: the person's reason; "": the run has none.
        work: identifies the entries of the audit, at most 32 characters; "": the run does.
    """

    urls: Sequence[str] = field(repr=False)
    prefix: str
    run_id: str
    past: datetime
    broker_name: str | None = None
    rate: RepairRate = UNBOUNDED
    is_following: bool = False
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    actor: str = ACTOR
    why: str = ""
    work: str = ""


@dataclass(frozen=True)
class RepairOutcome:
    """The outcome of a repair: whether it changed its stub, and a text."""

    repair: Repair
    changed: bool
    outcome: str


def repair_all(order: RepairOrder, repairs: Iterable[Repair]) -> Iterator[RepairOutcome]:
    """Do each repair in the database with its stub; yield the outcomes.

    At most one batch is in memory.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: a database failed. Earlier batches are committed.
    """
    databases = [_Database(url, order) for url in order.urls]
    rest, size = iter(repairs), order.rate.batch(_BATCH)
    begun, done = order.ticks(), 0
    while batch := list(islice(rest, size)):
        if wait := order.rate.wait(done, order.ticks() - begun):
            order.sleep(wait)
        done += len(batch)
        yield from _repair_in_all(databases, batch)


def _repair_in_all(
    databases: Sequence["_Database"], batch: list[Repair]
) -> Iterator[RepairOutcome]:
    again = sorted(each.message_id for each in batch if each.action in AGAIN)
    voided = [each.message_id for each in batch if each.action is RepairAction.VOID]
    against: dict[str, str] = {}
    left = {each.message_id: each for each in batch}
    for database in databases:
        if len(databases) > 1:
            against |= database.reasons_against(voided)
    for database in databases:
        mine = [left.pop(each) for each in database.stored_here(sorted(left))]
        here = {each.message_id for each in mine}
        # Before the stub: otherwise a consumer could get the message again, with its attempts used
        # up, and give it up.
        for other in databases:
            if other is not database:
                other.free_attempts([each for each in again if each in here])
        yield from database.apply(mine, against)
    for repair in left.values():
        yield RepairOutcome(repair, changed=False, outcome=GONE)


class _Database:
    """The tables of one database, for a repair."""

    def __init__(self, url: str, order: RepairOrder) -> None:
        self._engine = _engine(url)
        self._order = order
        self._clock = DatabaseClock(self._engine, order.clock)
        metadata = set_table_options(MetaData())
        audit = audit_table(metadata, order.prefix)
        escalations = escalation_table(metadata, order.prefix)
        metadata.create_all(self._engine)
        self._audit = SqlAudit(audit)
        self._stubs = message_stub_table(MetaData(), order.prefix)
        self._logs = consume_log_table(MetaData(), order.prefix)
        self._escalations = SqlEscalations(self._engine, escalations, self._stubs)
        dialect = self._engine.dialect.name
        with self._engine.connect() as connection:
            notices = confirmation_table(MetaData(), order.prefix)
            self._ledgers = [self._logs]
            self._ledgers += [notices] * inspect(connection).has_table(notices.name)
        self._prepare(dialect)

    def _prepare(self, dialect: str) -> None:
        stub, log = self._stubs.c, self._logs.c
        these, of_these = (is_among(t.message_id, "ids", dialect) for t in (stub, log))
        received = log.state == LogState.RECEIVED.value
        attempts = select(log.message_id).where(of_these, received)
        self._all_attempts = attempts
        self._attempts = AttemptRestarts(self._logs, dialect)
        self._there = select(stub.message_id).where(these)
        columns = (stub.message_id, stub.status, stub.count, stub.update_date, stub.required_groups)
        sending = (stub.broker_name, stub.given_up, stub.lease_until)
        times = (stub.resend_time, stub.deliver_time)
        lock = select(*columns, *sending, *times).where(these).order_by(stub.message_id)
        self._lock = lock.with_for_update(skip_locked=True)
        self._consumed = [
            select(t.c.message_id).where(
                is_among(t.c.message_id, "ids", dialect), t.c.state == LogState.CONSUMED.value
            )
            for t in self._ledgers
        ]
        is_running = and_(log.owner.is_not(None), log.lease_until > bindparam("at"))
        self._running = attempts.where(is_running)
        self._change = update(self._stubs).where(these)
        self._mark = update(self._stubs).where(stub.message_id == bindparam("id"))

    def stored_here(self, message_ids: Sequence[str]) -> list[str]:
        """Return the messages whose stub is in this database."""
        if not message_ids:
            return []
        with self._engine.connect() as connection:
            there = set(connection.scalars(self._there, {"ids": list(message_ids)}))
        return [each for each in message_ids if each in there]

    def reasons_against(self, message_ids: Sequence[str]) -> dict[str, str]:
        """Return message id -> why the message must not be given up, by this database."""
        if not message_ids:
            return {}
        with self._engine.connect() as connection:
            return self._reasons_against(connection, message_ids, self._clock.now_on(connection))

    def _reasons_against(
        self, connection: Connection, message_ids: Sequence[str], at: float
    ) -> dict[str, str]:
        """Return the messages that a group has consumed or is handling now, with the reason.

        A running handler holds no lock: the lease of its attempt shows that it runs.
        """
        ids = {"ids": list(message_ids)}
        running = connection.scalars(self._running, ids | {"at": utc_datetime(at)})
        found = dict.fromkeys(running, LOCKED)
        for query in self._consumed:
            found |= dict.fromkeys(connection.scalars(query, ids), CONSUMED)
        return found

    def free_attempts(self, message_ids: Sequence[str]) -> None:
        """Reset the attempts at messages whose stub is in another database."""
        if message_ids:
            with self._engine.begin() as connection:
                _begin(connection)
                locked = self._locked_attempts(connection, message_ids)
                free = [each for each in message_ids if each not in locked]
                self._attempts.forget(connection, free, ended_before=self._order.past)

    def apply(self, repairs: Sequence[Repair], against: Mapping[str, str]) -> list[RepairOutcome]:
        """Do `repairs` in one transaction, with one audit row for each.

        `reasons_against`: message id -> why the message must not be given up, by other databases.
        """
        if not repairs:
            return []
        ids = [each.message_id for each in repairs]
        with self._engine.begin() as connection:
            _begin(connection)
            at = self._clock.now_on(connection)
            locked = self._locked_attempts(connection, ids)
            stubs = {row.message_id: row for row in connection.execute(self._lock, {"ids": ids})}
            voided = [each.message_id for each in repairs if each.action is RepairAction.VOID]
            here = self._reasons_against(connection, voided, at) if voided else {}
            results = []
            for repair in repairs:
                row = None if repair.message_id in locked else stubs.get(repair.message_id)
                trouble = obstacle(
                    repair,
                    row,
                    utc_datetime(at),
                    against={**against, **here},
                    broker_name=self._broker_of(repair),
                    is_following=self._order.is_following,
                )
                results.append(RepairOutcome(repair, not trouble, trouble or "done"))
            chosen = [each.repair for each in results if each.changed]
            self._write(connection, chosen, stubs, at)
            self._audit.write_acts(connection, map(self._act, results), at)
        return results

    def _locked_attempts(self, connection: Connection, message_ids: Sequence[str]) -> set[str]:
        """Lock the attempts at messages; return the messages that others have locked."""
        ids = {"ids": list(message_ids)}
        free = Counter(connection.scalars(self._attempts.free, ids))
        return set(Counter(connection.scalars(self._all_attempts, ids)) - free)

    def _write(
        self,
        connection: Connection,
        repairs: Sequence[Repair],
        stubs: Mapping[str, Any],
        at: float,
    ) -> None:
        """Change the stubs, their attempts and their escalations."""
        moment = utc_datetime(at)
        for action in RepairAction:
            chosen = [each for each in repairs if each.action is action]
            ids = {"ids": [each.message_id for each in chosen]}
            if not chosen:
                continue
            if action is RepairAction.MARK:
                for each in chosen:
                    marked = self._mark.values(**self._marked(each, moment))
                    connection.execute(marked, {"id": each.message_id})
            elif action is RepairAction.CONFIRM:
                connection.execute(self._change.values(**_settled(moment)), ids)
            elif action is RepairAction.VOID:
                note = f"voided by {self._order.actor}, run {self._order.run_id}"
                voided = _settled(moment) | {"status": StubStatus.VOIDED.value, "note": note}
                connection.execute(self._change.values(**voided), ids)
                self._escalations.close(connection, ids["ids"], "void", at)
            else:
                past = self._order.past
                self._attempts.forget(connection, ids["ids"], ended_before=past)
                self._send_again(connection, [stubs[each] for each in ids["ids"]], at)

    def _send_again(self, connection: Connection, stubs: Sequence[Any], at: float) -> None:
        """Let stubs be sent again.

        A stub that the scheduler still handles is marked as unsent and keeps its count. Otherwise
        regular repairs would keep it from ever being escalated. A run that repeats itself also
        keeps the scheduler's wait. A wait that would begin at the delivery time begins now, because
        no broker has the message. Any other run makes the stub due at once.
        """
        moment = utc_datetime(at)
        note = f"sent again by {self._order.actor}, run {self._order.run_id}"
        in_hand = [row for row in stubs if is_in_hand(row)]
        known = {row.message_id for row in in_hand}
        if in_hand:
            change = self._change.values(**unsent(moment), note=note)
            connection.execute(change, {"ids": sorted(known)})
        for row in in_hand:
            due = self._due(row, moment)
            if due < row.resend_time:
                connection.execute(self._mark.values(resend_time=due), {"id": row.message_id})
        anew = [row.message_id for row in stubs if row.message_id not in known]
        if anew:
            connection.execute(self._change.values(**sent_again(moment), note=note), {"ids": anew})
            self._escalations.close(connection, anew, "retry", at)

    def _due(self, stub: Any, at: datetime) -> datetime:
        """Return when the scheduler may send a stub that it still handles."""
        if not self._order.is_following:
            return at
        begin = stub.deliver_time
        due: datetime = stub.resend_time
        return at + (due - begin) if begin is not None and at < begin else due

    def _broker_of(self, repair: Repair) -> str | None:
        """Return the broker whose log has the record."""
        named = repair.seen.get("record_broker_name")
        return named or self._order.broker_name

    def _marked(self, repair: Repair, at: datetime) -> dict[str, Any]:
        """Return the columns of a stub with the position of its record."""
        marked = {
            "broker_name": self._broker_of(repair),
            "queue_id": repair.seen["record_queue_id"],
            "offset": repair.seen["record_queue_offset"],
            "update_date": at,
        }
        # If the stub requires no group, the broker's acknowledgement settles it.
        return marked | (_settled(at) if repair.groups == ("",) else {})

    def _act(self, result: RepairOutcome) -> AuditEntry:
        repair = result.repair
        detail = {
            "groups": repair.groups,
            "verdicts": repair.verdicts,
            "outcome": result.outcome,
            "before": {key: repair.seen[f"stub_{key}"] for key in ("status", "count", "offset")},
        }
        order = self._order
        by_hand = {"why": order.why, "run": order.run_id} if order.work else {}
        return AuditEntry(
            actor=order.actor,
            action=str(repair.action),
            message_id=repair.message_id,
            changed=result.changed,
            detail=by_hand | detail,
            run_id=order.work or order.run_id,
        )


def _settled(at: datetime) -> dict[str, ColumnElement[Any] | Any]:
    """Return the columns of a stub that is confirmed."""
    return {"status": StubStatus.CONFIRMED.value, "resend_time": null(), "update_date": at}


def _engine(url: str) -> Engine:
    """Return an engine whose locks block only the locked rows (MySQL: no gap locks)."""
    engine = open_engine(url)
    if dialect_family(engine.dialect.name) == "mysql":
        return engine.execution_options(isolation_level="READ COMMITTED")
    return engine


def _begin(connection: Connection) -> None:
    """On SQLite, lock the file now: it has no row locks, and would lock only at the first write."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
