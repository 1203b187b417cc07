"""Carries a plan out, audited, while traffic goes on.

A batch of repairs is a transaction. It locks the consume logs of its messages first and then their
stubs, as consumers do, and waits for nobody: what somebody else has locked is being worked at, and
is left alone, like a stub that is not any more as the run saw it. Doing the same plan twice changes
nothing the second time.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from reliable_mq.database.sql_people_tables import audit_table, escalation_table
from reliable_mq.database.sql_types import family_of, is_among, let_tables_be_alike, utc_datetime
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit
from reliable_mq.escalate.sql_escalations import SqlEscalations
from reliable_mq.outbox.sql_attempt_restarts import AttemptRestarts, sent_again, unsent
from reliable_mq.reconcile.databases.sql_ledger import (
    CONSUME_LOG,
    STUB,
    TOLD,
    open_engine,
    table_of,
)
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
    """What a repair works by.

    What ended before `past` had ended by every clock when the run judged. `broker_name` names the
    broker of the records that do not name theirs. `is_following`: the run repeats itself, so the
    scheduler keeps its waits, and people what they were told of. `clock` is this machine's, in
    seconds since the epoch; `ticks` are seconds that nobody sets; `sleep` takes seconds.
    """

    urls: Sequence[str]
    prefix: str
    run_id: str
    past: datetime
    broker_name: str | None = None
    rate: RepairRate = UNBOUNDED
    is_following: bool = False
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class RepairOutcome:
    """What a repair came to."""

    repair: Repair
    changed: bool
    outcome: str


def repair_all(order: RepairOrder, repairs: Iterable[Repair]) -> Iterator[RepairOutcome]:
    """Do each repair in the database in which its stub lies; yield what came of it.

    No more than a batch is held at a time.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: a database failed; what was done before stays.
    """
    databases = [_Database(url, order) for url in order.urls]
    rest, size = iter(repairs), order.rate.batch(_BATCH)
    begun, done = order.ticks(), 0
    while batch := list(islice(rest, size)):
        if wait := order.rate.wait(done, order.ticks() - begun):
            order.sleep(wait)
        done += len(batch)
        yield from _everywhere(databases, batch)


def _everywhere(databases: Sequence["_Database"], batch: list[Repair]) -> Iterator[RepairOutcome]:
    again = sorted(each.message_id for each in batch if each.action in AGAIN)
    voided = [each.message_id for each in batch if each.action is RepairAction.VOID]
    against: dict[str, str] = {}
    left = {each.message_id: each for each in batch}
    for database in databases:
        if len(databases) > 1:
            against |= database.against(voided)
    for database in databases:
        mine = [left.pop(each) for each in database.lying_here(sorted(left))]
        here = {each.message_id for each in mine}
        # Before the stub, so that nobody comes to a message that is sent again and gives it up.
        for other in databases:
            if other is not database:
                other.free_attempts([each for each in again if each in here])
        yield from database.apply(mine, against)
    for repair in left.values():
        yield RepairOutcome(repair, changed=False, outcome=GONE)


class _Database:
    """The tables of one database, as a repair works on them."""

    def __init__(self, url: str, order: RepairOrder) -> None:
        self._engine = _engine(url)
        self._order = order
        self._clock = DatabaseClock(self._engine, order.clock)
        metadata = let_tables_be_alike(MetaData())
        audit = audit_table(metadata, order.prefix)
        escalations = escalation_table(metadata, order.prefix)
        metadata.create_all(self._engine)
        self._audit = SqlAudit(audit)
        self._stubs = table_of(STUB, order.prefix)
        self._logs = table_of(CONSUME_LOG, order.prefix)
        self._escalations = SqlEscalations(self._engine, escalations, self._stubs)
        dialect = self._engine.dialect.name
        with self._engine.connect() as connection:
            told = table_of(TOLD, order.prefix)
            self._ledgers = [self._logs]
            self._ledgers += [told] * inspect(connection).has_table(told.name)
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

    def lying_here(self, message_ids: Sequence[str]) -> list[str]:
        """Return those of the messages whose stub lies in this database."""
        if not message_ids:
            return []
        with self._engine.connect() as connection:
            there = set(connection.scalars(self._there, {"ids": list(message_ids)}))
        return [each for each in message_ids if each in there]

    def against(self, message_ids: Sequence[str]) -> dict[str, str]:
        """Return what stands against giving messages up, as this database knows."""
        if not message_ids:
            return {}
        with self._engine.connect() as connection:
            return self._against(connection, message_ids, self._clock.now_on(connection))

    def _against(
        self, connection: Connection, message_ids: Sequence[str], at: float
    ) -> dict[str, str]:
        """Return it for those that some group has consumed, or is at work on.

        Nothing is locked while a handler runs: the lease of its attempt says that it does.
        """
        ids = {"ids": list(message_ids)}
        running = connection.scalars(self._running, ids | {"at": utc_datetime(at)})
        found = dict.fromkeys(running, LOCKED)
        for query in self._consumed:
            found |= dict.fromkeys(connection.scalars(query, ids), CONSUMED)
        return found

    def free_attempts(self, message_ids: Sequence[str]) -> None:
        """Let attempts start again whose stub lies in another database."""
        if message_ids:
            with self._engine.begin() as connection:
                _begin(connection)
                locked = self._locked_attempts(connection, message_ids)
                free = [each for each in message_ids if each not in locked]
                self._attempts.forget(connection, free, ended_before=self._order.past)

    def apply(self, repairs: Sequence[Repair], against: Mapping[str, str]) -> list[RepairOutcome]:
        """Do `repairs` in one transaction; every one gets an audit row in it.

        `against`: what stands against giving messages up, as other databases know.
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
            here = self._against(connection, voided, at) if voided else {}
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
        """Lock the attempts at messages; return the messages that somebody else has locked."""
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
        """Change the stubs, and what hangs on them."""
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
                note = f"voided by {ACTOR}, run {self._order.run_id}"
                voided = _settled(moment) | {"status": StubStatus.VOIDED.value, "note": note}
                connection.execute(self._change.values(**voided), ids)
                self._escalations.close(connection, ids["ids"], "void", at)
            else:
                past = self._order.past
                self._attempts.forget(connection, ids["ids"], ended_before=past)
                self._send_again(connection, [stubs[each] for each in ids["ids"]], at)

    def _send_again(self, connection: Connection, stubs: Sequence[Any], at: float) -> None:
        """Have stubs sent again, or tell the scheduler that has them in hand that no broker has.

        Its count stays, or a repair now and then would keep a person from ever being told. A run
        that repeats itself leaves it its waits, too; of those a wait that begins with the time of
        delivery begins now, for there is nothing to deliver. Any other run lets it send at once.
        """
        moment = utc_datetime(at)
        note = f"sent again by {ACTOR}, run {self._order.run_id}"
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
        """Return when the scheduler may send a stub that it has in hand."""
        if not self._order.is_following:
            return at
        begin = stub.deliver_time
        due: datetime = stub.resend_time
        return at + (due - begin) if begin is not None and at < begin else due

    def _broker_of(self, repair: Repair) -> str | None:
        """Return the broker in whose log the record lies."""
        named = repair.seen.get("record_broker_name")
        return named or self._order.broker_name

    def _marked(self, repair: Repair, at: datetime) -> dict[str, Any]:
        """Return the columns of a stub that knows where its record is."""
        marked = {
            "broker_name": self._broker_of(repair),
            "queue_id": repair.seen["record_queue_id"],
            "offset": repair.seen["record_queue_offset"],
            "update_date": at,
        }
        # The broker's acknowledgement may be all that it waited for.
        return marked | (_settled(at) if repair.groups == ("",) else {})

    def _act(self, result: RepairOutcome) -> AuditEntry:
        repair = result.repair
        detail = {
            "groups": repair.groups,
            "verdicts": repair.verdicts,
            "outcome": result.outcome,
            "before": {key: repair.seen[f"stub_{key}"] for key in ("status", "count", "offset")},
        }
        return AuditEntry(
            actor=ACTOR,
            action=str(repair.action),
            message_id=repair.message_id,
            changed=result.changed,
            detail=detail,
            run_id=self._order.run_id,
        )


def _settled(at: datetime) -> dict[str, ColumnElement[Any] | Any]:
    """Return the columns of a stub that is confirmed."""
    return {"status": StubStatus.CONFIRMED.value, "resend_time": null(), "update_date": at}


def _engine(url: str) -> Engine:
    """Return an engine whose locks keep nobody from rows that they are not on."""
    engine = open_engine(url)
    if family_of(engine.dialect.name) == "mysql":
        return engine.execution_options(isolation_level="READ COMMITTED")
    return engine


def _begin(connection: Connection) -> None:
    """Begin to write at once: SQLite has no locks on rows, and reads before it locks the file."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
