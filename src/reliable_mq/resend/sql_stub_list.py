"""Reads stubs for a person: lists and single ones with the consume logs of their message."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, select

from reliable_mq.outbox.stub import StubStatus

SUMMARY = (
    *("message_id", "topic", "message_key", "ordering_key", "status", "count"),
    *("resend_time", "required_groups", "create_date", "note"),
)


def list_stubs(
    connection: Connection,
    stubs: Table,
    *,
    status: StubStatus | None = None,
    escalated: bool = False,
    topic: str = "",
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return the newest stubs that fit, without their content.

    Args:
        connection: a transaction.
        stubs: the message stub table.
        status: only those in this status.
        escalated: only those that were sent often enough and wait for a person.
        topic: only those of this topic.
        limit: how many at most.
    """
    column = stubs.c
    wanted = select(*(column[name] for name in SUMMARY)).order_by(column.seq.desc()).limit(limit)
    if status is not None:
        wanted = wanted.where(column.status == status.value)
    if escalated:
        wanted = wanted.where(_is_escalated(stubs))
    if topic:
        wanted = wanted.where(column.topic == topic)
    return [_readable(row) for row in connection.execute(wanted)]


def escalated_stubs(
    connection: Connection, stubs: Table, *, topic: str = "", until: datetime | None = None
) -> list[dict[str, Any]]:
    """Return all stubs that wait for a person, the oldest first.

    Args:
        connection: a transaction.
        stubs: the message stub table.
        topic: only those of this topic.
        until: only those written before.
    """
    column = stubs.c
    wanted = (
        select(*(column[name] for name in SUMMARY)).where(_is_escalated(stubs)).order_by(column.seq)
    )
    if topic:
        wanted = wanted.where(column.topic == topic)
    if until is not None:
        wanted = wanted.where(column.create_date < until)
    return [_readable(row) for row in connection.execute(wanted)]


def _is_escalated(stubs: Table) -> ColumnElement[bool]:
    column = stubs.c
    return and_(column.status == StubStatus.UNCONFIRMED.value, column.resend_time.is_(None))


def show_stub(
    connection: Connection, stubs: Table, logs: Table, message_id: str
) -> dict[str, Any] | None:
    """Return everything about one stub, its content as text where it is text; None: no such."""
    row = connection.execute(select(stubs).where(stubs.c.message_id == message_id)).one_or_none()
    if row is None:
        return None
    shown = _readable(row)
    shown["content"] = bytes(shown["content"]).decode("utf-8", "backslashreplace")
    found: Sequence[Any] = connection.execute(
        select(logs).where(logs.c.message_id == message_id).order_by(logs.c.consumer_group)
    ).all()
    shown["consume_logs"] = [
        dict(log._mapping) | {"state": "CONSUMED" if log.state else "RECEIVED"} for log in found
    ]
    return shown


def _readable(row: Any) -> dict[str, Any]:
    return dict(row._mapping) | {"status": StubStatus(row.status).name}
