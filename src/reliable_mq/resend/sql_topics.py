"""What is known of topics beside their stubs: paused by a person, closed because sends fail.

Table `<prefix>resend_topic`, see `sql_scheduling_tables`; what a row means is `topic_gate`'s to
say. Every method is one transaction or two, and safe while any number of schedulers does the same.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    bindparam,
    false,
    insert,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.resend.sql_audit import Act, SqlAudit
from reliable_mq.resend.topic_gate import PROBE_LEASE, TopicRow, probe_wait
from reliable_mq.sql_types import utc_datetime

NOTE_LENGTH_MAX = 1000


class SqlTopics:
    """The rows of topics in one database.

    Args:
        engine: the database.
        table: of the topics.
        audit: where it is written what people did to a topic, in the same transaction.
    """

    def __init__(self, engine: Engine, table: Table, audit: SqlAudit | None = None) -> None:
        self._engine = engine
        self._audit = audit
        self._table = table
        topic = table.c
        this = topic.topic == bindparam("this")
        self._known = select(table).where(or_(topic.is_paused, topic.failures > 0))
        self._failed = (
            update(table)
            .where(this)
            .values(
                failures=bindparam("new_failures"),
                probe_time=bindparam("at"),
                note=bindparam("why"),
                update_date=bindparam("now"),
            )
        )
        self._sent = (
            update(table)
            .where(this, topic.failures > 0)
            .values(failures=0, probe_time=null(), update_date=bindparam("now"))
        )
        self._take_probe = (
            update(table)
            .where(this, topic.failures > 0, topic.probe_time <= bindparam("now"))
            .values(probe_time=bindparam("at"))
        )
        self._pause = (
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
        self._resume = (
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

    def rows(self) -> dict[str, TopicRow]:
        """Return the topics that are paused or closed, by name."""
        with self._engine.begin() as connection:
            return {row.topic: _row(row) for row in connection.execute(self._known)}

    def failed(self, topic: str, failures: int, now: float, error: str) -> None:
        """Close a topic after the `failures`-th batch in a row of which nothing arrived."""
        values = {"new_failures": failures, "at": utc_datetime(now + probe_wait(failures))}
        self._write(self._failed, topic, values | _why(error), now)

    def sent(self, topic: str, now: float) -> None:
        """Open a topic: something has arrived."""
        with self._engine.begin() as connection:
            connection.execute(self._sent, {"this": topic, "now": utc_datetime(now)})

    def take_probe(self, topic: str, now: float) -> bool:
        """Take the right to probe a closed topic; False: another scheduler has it."""
        values = {"this": topic, "now": utc_datetime(now), "at": utc_datetime(now + PROBE_LEASE)}
        with self._engine.begin() as connection:
            return connection.execute(self._take_probe, values).rowcount == 1

    def pause(self, topic: str, until: float | None, actor: str, note: str, now: float) -> None:
        """Let no scheduler send a topic's stubs, until a time or until `resume`."""
        values = {"until": None if until is None else utc_datetime(until), "who": actor}
        self._write(self._pause, topic, values | _why(note), now, act="resend pause")

    def resume(self, topic: str, actor: str, note: str, now: float) -> bool:
        """End a topic's pause; False: it had none."""
        values = {"this": topic, "who": actor, "now": utc_datetime(now), **_why(note)}
        with self._engine.begin() as connection:
            done = connection.execute(self._resume, values).rowcount == 1
            if done:
                self._note(connection, "resend resume", values, now)
        return done

    def _note(self, connection: Connection, act: str, values: dict[str, Any], now: float) -> None:
        """Write what a person did into the audit; it concerns no single message."""
        if self._audit is None or not act:
            return
        detail = {"topic": values["this"], "until": values.get("until"), "note": values["why"]}
        done = Act(actor=values["who"], action=act, message_id="", changed=True, detail=detail)
        self._audit.write(connection, [done], now)

    def _write(
        self, statement: Any, topic: str, values: dict[str, Any], now: float, act: str = ""
    ) -> None:
        """Change a topic's row, which is made first where there is none."""
        values = values | {"this": topic, "now": utc_datetime(now)}
        with self._engine.begin() as connection:
            if connection.execute(statement, values).rowcount:
                self._note(connection, act, values, now)
                return
        try:
            with self._engine.begin() as connection:
                row = {"topic": topic, "update_date": utc_datetime(now)}
                connection.execute(insert(self._table), row)
                connection.execute(statement, values)
                self._note(connection, act, values, now)
        except IntegrityError:  # another one made it at this moment
            with self._engine.begin() as connection:
                connection.execute(statement, values)
                self._note(connection, act, values, now)


def _why(text: str) -> dict[str, str]:
    return {"why": text[:NOTE_LENGTH_MAX]}


def _row(row: Any) -> TopicRow:
    return TopicRow(
        topic=row.topic,
        is_paused=row.is_paused,
        paused_until=_seconds(row.paused_until),
        failures=row.failures,
        probe_time=_seconds(row.probe_time),
        actor=row.actor,
        note=row.note or "",
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
