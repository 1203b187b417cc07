"""The entry of one piece of work in the audit: written before anything is done, and completed.

So a database that is away stops the work before its first step, and a console that dies in the
middle leaves the entry that says it had begun. The entry also says that a preview was started:
another console with the same secret, or this one after a restart, does not start it again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, text, update

from reliable_mq.console.work import Order
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_windows import times_span
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit, detail_text

BEGUN = "it has begun; how it ended is not known"


def is_begun(database: Database, connection: Connection, order: Order, since: datetime) -> bool:
    """Whether the audit has an entry of an order. On PostgreSQL, one transaction asks at a time.

    Args:
        database: the database of the audit.
        connection: the transaction that writes the entry.
        order: the order.
        since: its entry cannot be older: when its preview was made.
    """
    if database.dialect == "postgresql":  # two consoles that start one preview at once
        number = int(order.number[:15], 16)
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
    entry = database.audit.c
    span = times_span(connection, entry.seq, entry.create_date, since, None)  # no index has times
    wanted = select(entry.seq).where(
        *span, entry.create_date >= since, entry.run_id == order.number
    )
    return connection.execute(wanted.limit(1)).first() is not None


def begin_work(database: Database, order: Order, action: str, since: datetime) -> bool:
    """Write that an order is carried out; False: it was begun before, and nothing is to be done."""
    with database.forgiving_engine.begin() as connection:
        if is_begun(database, connection, order, since):
            return False
        act = AuditEntry(
            actor=order.actor,
            action=action,
            message_id="",
            changed=False,
            detail={"why": order.why, "outcome": BEGUN},
            run_id=order.number,
        )
        now = database.clock.now_on(connection)
        SqlAudit(database.audit).write_acts(connection, [act], now)
    return True


def end_work(database: Database, order: Order, on: Mapping[str, Any], fault: str) -> None:
    """Write what was changed, and what was not and why.

    Args:
        database: the database of the audit.
        order: the order.
        on: what was changed; empty: nothing.
        fault: why something was not changed; "": all was.
    """
    detail = {"why": order.why, "on": dict(on)} | ({"outcome": fault} if fault else {})
    entry = database.audit
    completed = update(entry).where(entry.c.run_id == order.number)
    with database.forgiving_engine.begin() as connection:
        connection.execute(completed.values(changed=int(bool(on)), detail=detail_text(detail)))
