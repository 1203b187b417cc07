"""Reads stubs for a person: lists and single ones with the consume logs of their message."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

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
        wanted = wanted.where(
            column.status == StubStatus.UNCONFIRMED.value, column.resend_time.is_(None)
        )
    if topic:
        wanted = wanted.where(column.topic == topic)
    return [_readable(row) for row in connection.execute(wanted)]


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
