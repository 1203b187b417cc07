"""Search for stuck stubs: old, not settled, not given to a person. One instance at a time.

Stuck stubs are grouped by *matter*. A matter is a topic and a consumer group that has not consumed
its messages. Each topic has one more matter, without a group: stubs that were not sent, and stubs
that all groups have consumed but that are not confirmed. The oldest stubs of a matter get one
escalation each. One backlog escalation counts the rest, so a large matter cannot hide a small one.

The search reads only old stubs, by an index on topic and time. Young stubs cost nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    not_,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.confirm.sql_confirmation import SqlConfirmation, confirmation_of
from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_agenda import agenda_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_mysql_agenda import mysql_topics_of
from reliable_mq.database.sql_stub_table import waiting_rows
from reliable_mq.database.sql_types import MYSQL, READS_ONLY, is_among, utc_datetime
from reliable_mq.escalate.escalation import Escalation, EscalationKind, open_key
from reliable_mq.escalate.sql_escalations import SqlEscalations, escalations_of
from reliable_mq.outbox.stub import groups_of
from reliable_mq.plain_text import times

TOLD_ONE_BY_ONE = 50
"""Most stubs of a matter that have an open escalation of their own."""

PART = 20
"""All instances together spend at most 1/PART of the time searching. After a search that took long,
because many stubs are stuck, the next turn therefore comes later."""

DUTY = "stuck"
_READ = (
    *("message_id", "topic", "message_key", "required_groups", "given_up_by"),
    *("count", "broker_name", "note"),
)

_UNCONFIRMED = StubStatus.UNCONFIRMED.value


class _Matter(NamedTuple):
    """Stubs of one topic that wait for the same group. `group` "": they wait for no group."""

    topic: str
    group: str
    condition: ColumnElement[bool]


class _Open(NamedTuple):
    """Open escalations: stubs counted by topic and group, and the matters with an open backlog."""

    stubs: dict[tuple[str, str], int]
    rests: set[tuple[str, str]]


class SqlStuck:
    """The search for stuck stubs in one database.

    Args:
        engine: the database.
        stubs: the message stub table.
        logs: the consume log beside it.
        confirmation: finds the groups that have consumed a message, also by notices.
        escalations: where found stubs are escalated.
        duties: the table of duties: it says when the next turn is.
        stopwatch: a clock in seconds that never jumps. It measures how long a search takes.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        stubs: Table,
        logs: Table,
        confirmation: SqlConfirmation,
        escalations: SqlEscalations,
        duties: Table,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._reading = engine.execution_options(**READS_ONLY)
        self._stubs = stubs
        self._ledgers = (logs, confirmation.table)
        self._confirmation = confirmation
        self._escalations = escalations
        self._duties = duties
        self._stopwatch = stopwatch
        self._prepare_turns(duties)
        self._prepare_finding(stubs, escalations.table, engine.dialect.name)
        self._prepare_closing(stubs, escalations.table, engine.dialect.name)

    def _prepare_turns(self, duties: Table) -> None:
        duty = duties.c
        self._turn = select(duty.next_time).where(duty.duty == DUTY)
        self._take = (
            update(duties)
            .where(duty.duty == DUTY, duty.next_time <= bindparam("at"))
            .values(next_time=bindparam("next"))
        )
        self._postpone = (
            update(duties)
            .where(duty.duty == DUTY, duty.next_time < bindparam("next"))
            .values(next_time=bindparam("next"))
        )

    def _prepare_finding(self, stubs: Table, escalations: Table, dialect: str) -> None:
        stub, this = stubs.c, escalations.c
        waiting, old = waiting_rows(stubs), bindparam("old", type_=stub.create_date.type)
        # The database compares the times, and Python never reads them. So an unreadable time in
        # one row cannot hide the other rows.
        agenda = (
            mysql_topics_of(stubs)
            if dialect in MYSQL
            else agenda_of(stubs, {"waiting": waiting}, stub.create_date)
        ).subquery()
        self._topics = select(agenda.c.topic).where(agenda.c.first_time <= old)
        self._old = (
            waiting,
            stub.topic == bindparam("topic"),
            stub.create_date <= old,
            func.coalesce(stub.deliver_time, stub.create_date) <= old,
        )
        self._waits_for = (
            select(stub.required_groups, stub.given_up_by)
            .where(*self._old, stub.broker_name.is_not(None))
            .group_by(stub.required_groups, stub.given_up_by)
        )
        is_told = this.open_key == literal(open_key(EscalationKind.STUCK, "")) + stub.message_id
        # A person retried it a short time ago: do not escalate at once that it is old.
        is_tried = and_(
            this.message_id == stub.message_id, this.close_reason == "retry", this.close_date > old
        )
        self._untold = (*self._old, not_(exists().where(is_told)), not_(exists().where(is_tried)))
        self._still = select(stub.message_id).where(
            is_among(stub.message_id, "ids", dialect), waiting
        )
        self._open = (
            select(this.kind, this.topic, this.consumer_group, func.count())
            .where(
                this.close_date.is_(None),
                this.kind.in_((EscalationKind.STUCK, EscalationKind.BACKLOG)),
            )
            .group_by(this.kind, this.topic, this.consumer_group)
        )

    def _prepare_closing(self, stubs: Table, escalations: Table, dialect: str) -> None:
        this, stub = escalations.c, stubs.c
        close = (
            update(escalations)
            .where(this.close_date.is_(None))
            .values(open_key=null(), close_date=bindparam("at"), close_reason=literal("settled"))
        )
        settled = exists().where(stub.message_id == this.message_id, stub.status != _UNCONFIRMED)
        voided = exists().where(
            stub.message_id == this.message_id, stub.status == StubStatus.VOIDED.value
        )
        consumed = self._has_consumed(this.message_id, this.consumer_group)
        is_letter = this.kind == EscalationKind.DEAD_LETTER.value
        # If its group has given the message up since, the dead letter has its own escalation.
        comma = literal(",")
        named, over = comma + this.consumer_group + comma, comma + stub.given_up_by + comma
        given_up = exists().where(
            stub.message_id == this.message_id, func.replace(over, named, "") != over
        )
        is_over = and_(this.kind == EscalationKind.STUCK.value, this.consumer_group != "", given_up)
        self._close_settled = close.where(
            or_(consumed, is_over, and_(is_letter, voided), and_(not_(is_letter), settled))
        )
        self._close_rests = close.where(is_among(this.open_key, "keys", dialect))

    def _has_consumed(
        self, message_id: ColumnElement[str], group: ColumnElement[str]
    ) -> ColumnElement[bool]:
        """Return the condition that a group has consumed a message, by our log or by a notice."""
        return or_(
            *(
                exists().where(
                    each.c.message_id == message_id,
                    each.c.consumer_group == group,
                    each.c.state == LogState.CONSUMED.value,
                )
                for each in self._ledgers
            )
        )

    def take_turn(self, now: float, next_time: float) -> bool:
        """Take the turn to search, until `next_time`; False: another instance has it."""
        values = {"at": utc_datetime(now), "next": utc_datetime(next_time)}
        with self._engine.begin() as connection:
            if connection.execute(self._take, values).rowcount == 1:
                return True
            if connection.scalar(self._turn) is not None:
                return False
        try:
            with self._engine.begin() as connection:
                row = {"duty": DUTY, "next_time": values["next"]}
                connection.execute(insert(self._duties), row)
        except IntegrityError:  # another instance inserted the row at this moment
            return False
        return True

    def close_settled(self, now: float) -> int:
        """Close escalations whose cause has settled by itself; return how many."""
        with self._engine.begin() as connection:
            return connection.execute(self._close_settled, {"at": utc_datetime(now)}).rowcount

    def escalate_stuck(self, now: float, age: float) -> int:
        """Escalate unsettled stubs older than `age` seconds; return how many are new.

        Each matter has its own transaction. If the process dies in between, the next search
        escalates the other matters.
        """
        began = self._stopwatch()
        found = self._escalate_all(now, age)
        next_time = utc_datetime(now + PART * (self._stopwatch() - began))
        with self._engine.begin() as connection:
            connection.execute(self._postpone, {"next": next_time})
        return found

    def _escalate_all(self, now: float, age: float) -> int:
        old = utc_datetime(now - age)
        with self._reading.begin() as connection:
            known = self._known(connection)
            topics = list(connection.execute(self._topics, {"old": old}).scalars())
        found, lasting = 0, set()
        for topic in topics:
            for matter in self._matters(topic, old):
                new, has_rest = self._escalate_matter(matter, known, age, now)
                found += new
                if has_rest:
                    lasting.add((matter.topic, matter.group))
        if over := known.rests - lasting:
            keys = sorted(_rest_key(*each) for each in over)
            with self._engine.begin() as connection:
                connection.execute(self._close_rests, {"keys": keys, "at": utc_datetime(now)})
        return found

    def _known(self, connection: Connection) -> _Open:
        known = _Open({}, set())
        for kind, topic, group, count in connection.execute(self._open):
            if kind == EscalationKind.BACKLOG:
                known.rests.add((topic, group))
            else:
                known.stubs[topic, group] = count
        return known

    def _matters(self, topic: str, old: datetime) -> Iterator[_Matter]:
        """Yield the matters that old stubs of a topic may belong to.

        A group that gave a message up does not count: this was escalated when it gave up.
        """
        stub = self._stubs.c
        with self._reading.begin() as connection:
            values = {"topic": topic, "old": old}
            kinds = connection.execute(self._waits_for, values).all()
        texts = {row.required_groups for row in kinds}
        given_up = {row.given_up_by for row in kinds}
        yield _Matter(topic, "", or_(stub.broker_name.is_(None), self._confirmation.is_complete))
        for group in sorted({group for text in texts for group in groups_of(text)}):
            consumed = self._has_consumed(stub.message_id, literal(group))
            waits = stub.required_groups.in_(_naming(group, texts))
            over = stub.given_up_by.in_(_naming(group, given_up))
            sent = stub.broker_name.is_not(None)
            yield _Matter(topic, group, and_(sent, waits, not_(over), not_(consumed)))

    def _escalate_matter(
        self, matter: _Matter, known: _Open, age: float, now: float
    ) -> tuple[int, bool]:
        """Escalate the new stubs of a matter; return their number, and whether it has a backlog."""
        stub, place = self._stubs.c, (matter.topic, matter.group)
        is_known = place in known.rests
        room = 0 if is_known else max(0, TOLD_ONE_BY_ONE - known.stubs.get(place, 0))
        values = {"topic": matter.topic, "old": utc_datetime(now - age)}
        wanted = select(*(stub[name] for name in _READ)).where(*self._untold, matter.condition)
        oldest_first = wanted.order_by(stub.create_date, stub.seq)
        with self._reading.begin() as connection:
            rows = connection.execute(oldest_first.limit(room + 1), values).all()
            has_rest = len(rows) > room
            if is_known or not rows:
                return 0, has_rest
            count = len(rows)
            if has_rest:
                counting = select(func.count()).where(*self._untold, matter.condition)
                count = connection.execute(counting, values).scalar_one()
            ids = {"ids": [row.message_id for row in rows[:room]]}
            consumed = self._confirmation.consumed(connection, ids["ids"])
        with self._engine.begin() as connection:
            still = set(connection.execute(self._still, ids).scalars())
            telling = [
                _stuck(row, matter.group, consumed, age)
                for row in rows[:room]
                if row.message_id in still
            ]
            if has_rest:
                telling.append(_backlog(matter, count - room, age))
            self._escalations.escalate(connection, telling, now)
        return count, has_rest


def _naming(group: str, texts: Iterable[str]) -> list[str]:
    return sorted(each for each in texts if group in groups_of(each))


def _stuck(row: Any, group: str, consumed: set[tuple[str, str]], age: float) -> Escalation:
    count = row._mapping["count"]
    over = groups_of(row.given_up_by)
    missing = [
        each
        for each in groups_of(row.required_groups)
        if each not in over and (row.message_id, each) not in consumed
    ]
    hours = f"{age / 3600:.1f} h"
    if row.broker_name is None:
        reason = f"not sent in {hours}, after {count} tries"
        reason += f"; the last one: {row.note}" if row.note and count else ""
    elif missing:
        reason = f"not consumed in {hours} by {', '.join(missing)}; sent {times(count)}"
    else:
        reason = f"consumed by every required group, and not confirmed in {hours}"
    return Escalation(
        kind=EscalationKind.STUCK,
        message_id=row.message_id,
        topic=row.topic,
        message_key=row.message_key,
        reason=reason,
        consumer_group=group,
    )


def _backlog(matter: _Matter, count: int, age: float) -> Escalation:
    what = f"not consumed by {matter.group}" if matter.group else "not sent, or not confirmed"
    return Escalation(
        kind=EscalationKind.BACKLOG,
        message_id="",
        topic=matter.topic,
        reason=f"{count} more messages are {what} for {age / 3600:.1f} h",
        consumer_group=matter.group,
    )


def _rest_key(topic: str, group: str) -> str:
    rest = Escalation(
        kind=EscalationKind.BACKLOG, message_id="", topic=topic, reason="", consumer_group=group
    )
    return rest.open_key


def stuck_of(database: Database) -> SqlStuck:
    """Return the search for stuck stubs of a database."""
    return SqlStuck(
        database.forgiving_engine,
        stubs=database.stubs,
        logs=database.logs,
        confirmation=confirmation_of(database),
        escalations=escalations_of(database),
        duties=database.duties,
    )
