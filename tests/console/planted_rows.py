"""Rows of a database with a text in every field that another program may have written."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert

from reliable_mq.database.attempt_list import AttemptEnd, line_of
from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.escalation import EscalationKind

NOW = datetime.now(UTC).replace(microsecond=0)
ODD = (
    "\"'><script>alert(1)</script><img src=x onerror=alert(2)>"
    "&amp;{{7*1111117}}%2f/\\😀\u202eשלום\x1b[31m"
)
"""HTML, quotes, a template, a right-to-left mark, an emoji, an escape sequence."""


def as_of_now(address: str) -> str:
    """Let the minutes of an address that count from `NOW` count from this moment.

    All modules are imported first, so the last ones may run half an hour later.
    """
    passed = (datetime.now(UTC) - NOW) // timedelta(minutes=1)
    return re.sub(r"=-(\d+)m", lambda found: f"=-{int(found[1]) + passed}m", address)


def message_id(number: int, moment: datetime = NOW) -> str:
    """Return an id of ours with the time of a moment."""
    milliseconds = int(moment.timestamp() * 1000)
    return f"{milliseconds:012X}7{number:03X}8{number:015X}"


def stub(number: int, **values: Any) -> dict[str, Any]:
    """Return the row of a stub, an hour old for each number."""
    written = NOW - timedelta(hours=number)
    return {
        "message_id": message_id(number, written),
        "topic": "orders",
        "message_key": f"order-{number}",
        "content": b'{"order": 1}',
        "content_type": "application/json",
        "status": 0,
        "count": 1,
        "resend_time": NOW,
        "required_groups": "billing",
        "create_date": written,
        "update_date": written,
        **values,
    }


def log(stub_row: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """Return the row of a consume log about a stub's message."""
    return {
        "consumer_group": "billing",
        "message_id": stub_row["message_id"],
        "topic": stub_row["topic"],
        "broker_name": "broker-a",
        "queue_id": 0,
        "offset": 7,
        "state": 1,
        "attempt": 1,
        "create_date": stub_row["create_date"] + timedelta(seconds=1),
        "consume_date": stub_row["create_date"] + timedelta(seconds=3),
        **values,
    }


def insert_rows(database: Database, name: str, *rows: Mapping[str, Any]) -> None:
    """Insert rows into one of our tables, by its name without the prefix."""
    table = database.metadata.tables[f"{database.prefix}{name}"]
    with database.engine.begin() as connection:
        for row in rows:
            connection.execute(insert(table), dict(row))


def plant_everywhere(database: Database, text: str = ODD) -> str:
    """Plant a text in every field of one message's rows that takes it; return the message's id."""
    own = stub(
        1,
        message_id=text[:32],
        topic=text[:127],
        tag=text,
        message_key=text,
        ordering_key=text,
        content=f"<html>{text}</html>".encode(),
        content_type=text[:127],
        properties=json.dumps({text: text}),
        broker_name=text[:127],
        queue_id=1,
        offset=2,
        required_groups=text[:127],
        given_up_by=text[:127],
        note=text,
        owner=text[:64],
        resend_time=None,
    )
    failed = line_of(1, NOW.timestamp(), AttemptEnd.FAILED, text)
    ended = log(own, consumer_group=text[:127], broker_name=text[:127], owner=text[:64], note=text)
    insert_rows(database, "message_stub", own)
    insert_rows(database, "consume_log", ended | {"failure": text, "failures": failed, "state": 0})
    insert_rows(
        database,
        "escalation",
        {
            "kind": EscalationKind.DEAD_LETTER,
            "message_id": own["message_id"],
            "consumer_group": text[:127],
            "topic": text[:127],
            "message_key": text,
            "reason": text,
            "open_key": text,
            "create_date": NOW,
        },
    )
    insert_rows(
        database,
        "audit",
        {
            "create_date": NOW,
            "actor": text[:127],
            "action": text[:32],
            "changed": 1,
            "message_id": own["message_id"],
            "detail": json.dumps({"why": text}),
        },
    )
    insert_rows(
        database,
        "reconcile_finding",
        {
            "run_id": text[:32],
            "message_id": own["message_id"],
            "topic": text,
            "consumer_group": text[:127],
            "verdict": text[:32],
            "create_date": NOW,
            "evidence": json.dumps({"why": text}),
        },
    )
    insert_rows(database, "reconcile_run", run(run_id=text[:32], findings=1))
    return str(own["message_id"])


def run(**values: Any) -> dict[str, Any]:
    """Return the row of a run of reconciliation."""
    return {
        "run_id": "run-1",
        "as_of": NOW,
        "grace_seconds": 0,
        "store": "",
        "verdicts": "{}",
        "ledgers": "{}",
        "findings": 0,
        "is_clean": True,
        "finish_date": NOW,
        **values,
    }
