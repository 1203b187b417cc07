"""Reads a database's figures for metrics: the outbox's backlog, escalations, dead letters.

Each statement reads the index of its kind of rows, and none reads settled rows.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import waiting_kinds
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.telemetry.families import Sample

STATEMENT_SECONDS = 5.0
"""The database ends a statement after this time, in seconds."""


class SqlFigures:
    """The figures of one database.

    Args:
        name: the database's name in the application.
        database: the database.
        wait_max: the longest wait between two sends of a stub, in seconds. A stub that may leave
            only later waits for its own time, and is no sign of a fault.
    """

    def __init__(self, name: str, database: Database, wait_max: float) -> None:
        self._name = name
        self._database = database
        self._wait_max = wait_max
        self._kinds = waiting_kinds(database.stubs)

    def read(self) -> list[Sample]:
        """Return the samples of the source "application", except whether the database is up."""
        database = self._database
        with database.engine.connect() as connection:
            limit_statements(connection, STATEMENT_SECONDS)
            now = database.clock.measured_now()
            return [*self._stubs(connection, now), *self._escalations(connection)]

    def _stubs(self, connection: Connection, now: float) -> Iterator[Sample]:
        unsent: dict[str, int] = {}
        oldest: list[datetime] = []
        for kind in ("unsent", "suspect"):
            for topic, count in self._by_topic(connection, kind):
                unsent[topic] = unsent.get(topic, 0) + count
            if (found := self._oldest(connection, kind, now)) is not None:
                oldest.append(found)
        for topic, count in unsent.items():
            yield Sample("reliable_mq_outbox_unsent_stubs", count, (self._name, topic))
        for topic, count in self._by_topic(connection, "sent"):
            yield Sample("reliable_mq_outbox_unconfirmed_stubs", count, (self._name, topic))
        age = max(0.0, now - min(oldest).timestamp()) if oldest else 0.0
        yield Sample("reliable_mq_outbox_oldest_unsent_seconds", age, (self._name,))

    def _by_topic(self, connection: Connection, kind: str) -> list[tuple[str, int]]:
        topic = self._database.stubs.c.topic
        counted = select(topic, func.count()).where(self._kinds[kind]).group_by(topic)
        return [(name, count) for name, count in connection.execute(counted)]

    def _oldest(self, connection: Connection, kind: str, now: float) -> datetime | None:
        """Return when the oldest stub of a kind was made; None: there is none.

        A stub whose send has failed counts before its next send. One that is delayed and was never
        tried counts when it is due: that it waits is no fault, however long ago it was made.
        """
        found = self._first(connection, kind, now + self._wait_max)
        if found is None:
            return None
        waits = found.deliver_time is not None and found.note is None
        if waits and found.resend_time > utc_datetime(now):
            found = self._first(connection, kind, now)
        return None if found is None else found.create_date

    def _first(self, connection: Connection, kind: str, until: float) -> Any:
        """Return the oldest stub of a kind that is due until a time; None: there is none.

        The first row of each topic comes from the index, and then one row of the table is read.
        """
        stub = self._database.stubs.c
        is_due: ColumnElement[bool] = stub.resend_time <= utc_datetime(until)
        first = select(func.min(stub.seq)).where(self._kinds[kind], is_due).scalar_subquery()
        read = select(stub.create_date, stub.resend_time, stub.deliver_time, stub.note)
        return connection.execute(read.where(stub.seq == first)).one_or_none()

    def _escalations(self, connection: Connection) -> Iterator[Sample]:
        escalation = self._database.escalations.c
        counted = (
            select(escalation.kind, escalation.consumer_group, func.count())
            .where(escalation.close_date.is_(None))
            .group_by(escalation.kind, escalation.consumer_group)
        )
        kinds: dict[str, int] = {}
        for kind, group, count in connection.execute(counted):
            if kind == EscalationKind.DEAD_LETTER:
                yield Sample("reliable_mq_dead_letters_open", count, (self._name, group))
            else:
                kinds[kind] = kinds.get(kind, 0) + count
        for kind, count in kinds.items():
            yield Sample("reliable_mq_escalations_open", count, (self._name, kind))
