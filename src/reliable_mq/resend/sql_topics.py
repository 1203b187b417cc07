"""The states of topics in the database: paused by a person, or closed because their sends fail.

Table `<prefix>resend_topic`, see `sql_scheduling_tables`; `topic_gate` says what a row means. Every
method is one transaction or two. Any number of schedulers may call them at the same time.
"""

from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    bindparam,
    case,
    false,
    insert,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.sql_types import NOTE_LENGTH_MAX, utc_datetime
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit
from reliable_mq.resend.topic_gate import PROBE_LEASE, TopicRow, after_failures


class SqlTopics:
    """The rows of topics in one database.

    Args:
        engine: the database.
        table: the table of topics.
        audit: records what people did to a topic, in the same transaction. None: no record.
        lease: seconds that the right to probe lasts. Default `PROBE_LEASE`.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        audit: SqlAudit | None = None,
        *,
        lease: float = PROBE_LEASE,
    ) -> None:
        self._lease = lease
        self._engine = engine
        self._audit = audit
        self._table = table
        topic = table.c
        this = topic.topic == bindparam("this")
        self._known = select(table).where(
            or_(topic.is_paused, topic.failures > 0, topic.probes > 0)
        )
        self._is_there = select(topic.topic).where(this)
        self._lock = select(table).where(this).with_for_update()
        self._failed = (
            update(table)
            .where(this)
            .values(
                failures=bindparam("new_failures"),
                probes=bindparam("new_probes"),
                probe_time=bindparam("at"),
                note=bindparam("why"),
                update_date=bindparam("now"),
            )
        )
        is_closed = topic.probe_time.is_not(None)
        # The order matters: on MySQL a later assignment reads the values of earlier ones.
        opening: tuple[tuple[Any, Any], ...] = (
            (topic.failures, 0),
            (topic.probes, case((is_closed, 1), else_=topic.probes)),
            (topic.probe_time, null()),
            (topic.update_date, bindparam("now")),
        )
        self._sent = (
            update(table).where(this, or_(topic.failures > 0, is_closed)).ordered_values(*opening)
        )
        # Not a topic that has closed again meanwhile.
        is_opening = (topic.probe_time.is_(None), topic.probes > 0)
        self._opened = (
            update(table).where(this, *is_opening).values(probes=0, update_date=bindparam("now"))
        )
        self._take_probe = (
            update(table)
            .where(this, topic.probe_time <= bindparam("now"))
            .values(probe_time=bindparam("at"))
        )
        self._give_probe_back = (
            update(table).where(this, topic.probe_time > bindparam("now"))
        ).values(probe_time=bindparam("now"))
        self._open = (
            update(table)
            .where(this, is_closed)
            .ordered_values(*opening, (topic.actor, bindparam("who")))
        )
        self._pause, self._resume = self._by_hand(table)

    @staticmethod
    def _by_hand(table: Table) -> tuple[Any, Any]:
        """Return the statements that pause a topic and that end its pause."""
        topic = table.c
        this = topic.topic == bindparam("this")
        pause = (
            update(table)
            .where(this)
            .values(
                is_paused=true(),
                paused_until=bindparam("until"),
                actor=bindparam("who"),
                note=bindparam("why"),
                update_date=bindparam("now"),
            )
        )
        resume = (
            update(table)
            .where(this, topic.is_paused)
            .values(
                is_paused=false(),
                paused_until=null(),
                actor=bindparam("who"),
                note=bindparam("why"),
                update_date=bindparam("now"),
            )
        )
        return pause, resume

    def rows(self) -> dict[str, TopicRow]:
        """Return the topics that are paused, failing, closed or opening, by name."""
        with self._engine.begin() as connection:
            return {row.topic: _row(row) for row in connection.execute(self._known)}

    def add_failures(self, topic: str, failures: int, now: float, error: str) -> TopicRow:
        """Add failed sends, of which none arrived; return the new row. The topic may have closed.

        `failures` is their number, `now` the time in seconds, `error` the text of one of them.
        """
        self._make(topic, now)
        with self._engine.begin() as connection:
            row = _row(connection.execute(self._lock, {"this": topic}).one())
            row = after_failures(row, failures, now)
            values = {
                "this": topic,
                "new_failures": row.failures,
                "new_probes": row.probes,
                "at": None if row.probe_time is None else utc_datetime(row.probe_time),
                "now": utc_datetime(now),
            }
            connection.execute(self._failed, values | _why(error))
        return row

    def sent(self, topic: str, now: float) -> None:
        """Open a topic and reset its failures: a send has arrived.

        A topic that was closed is "opening" until `opened` says that all its waiting stubs are due.
        """
        with self._engine.begin() as connection:
            connection.execute(self._sent, {"this": topic, "now": utc_datetime(now)})

    def opened(self, topic: str, now: float) -> None:
        """Record that all stubs that waited for a topic to open are due now."""
        with self._engine.begin() as connection:
            connection.execute(self._opened, {"this": topic, "now": utc_datetime(now)})

    def take_probe(self, topic: str, now: float) -> bool:
        """Take the right to probe a closed topic; False: another scheduler has it."""
        values = {"this": topic, "now": utc_datetime(now), "at": utc_datetime(now + self._lease)}
        with self._engine.begin() as connection:
            return connection.execute(self._take_probe, values).rowcount == 1

    def release_probe(self, topic: str, now: float) -> None:
        """Release the right to probe, because the probe sent nothing. The next one is due now."""
        with self._engine.begin() as connection:
            connection.execute(self._give_probe_back, {"this": topic, "now": utc_datetime(now)})

    def pause(
        self,
        topic: str,
        until: float | None,
        actor: str,
        note: str,
        now: float,
        run_id: str | None = None,
    ) -> None:
        """Pause a topic: no scheduler sends its stubs before `until` (seconds) or `resume`.

        `until` None: until `resume`. `actor` and `note` go to the row and to the audit, `run_id`
        to the audit.
        """
        self._make(topic, now)
        values = {"until": None if until is None else utc_datetime(until), "who": actor}
        values |= {"this": topic, "now": utc_datetime(now), **_why(note)}
        with self._engine.begin() as connection:
            connection.execute(self._pause, values)
            self._note(connection, "resend pause", values, now, run_id)

    def resume(
        self, topic: str, actor: str, note: str, now: float, run_id: str | None = None
    ) -> bool:
        """End the pause of a topic, and open it if it is closed; False: it was neither.

        If it was closed, all its waiting stubs are due at once, as after a send that arrived.
        """
        who = {"this": topic, "who": actor, "now": utc_datetime(now)}
        values = who | _why(note)
        with self._engine.begin() as connection:
            was_paused = connection.execute(self._resume, values).rowcount == 1
            was_closed = connection.execute(self._open, who).rowcount == 1
            if was_paused:
                self._note(connection, "resend resume", values, now, run_id)
            if was_closed:
                self._note(connection, "resend open", values, now, run_id)
        return was_paused or was_closed

    def _note(
        self,
        connection: Connection,
        act: str,
        values: dict[str, Any],
        now: float,
        run_id: str | None,
    ) -> None:
        """Write a person's action to the audit. It has no message id."""
        if self._audit is None:
            return
        detail = {"topic": values["this"], "until": values.get("until"), "note": values["why"]}
        done = AuditEntry(
            actor=values["who"],
            action=act,
            message_id="",
            changed=True,
            detail=detail,
            run_id=run_id,
        )
        self._audit.write_acts(connection, [done], now)

    def _make(self, topic: str, now: float) -> None:
        """Insert the row of a topic if there is none. A new row has no state yet."""
        with self._engine.begin() as connection:
            if connection.execute(self._is_there, {"this": topic}).first() is not None:
                return
        with suppress(IntegrityError), self._engine.begin() as connection:
            # IntegrityError: another process inserted it at this moment
            row = {"topic": topic, "update_date": utc_datetime(now)}
            connection.execute(insert(self._table), row)


def _why(text: str) -> dict[str, str]:
    return {"why": text[:NOTE_LENGTH_MAX]}


def _row(row: Any) -> TopicRow:
    return TopicRow(
        topic=row.topic,
        is_paused=row.is_paused,
        paused_until=_seconds(row.paused_until),
        failures=row.failures,
        probes=row.probes,
        probe_time=_seconds(row.probe_time),
        actor=row.actor,
        note=row.note or "",
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
