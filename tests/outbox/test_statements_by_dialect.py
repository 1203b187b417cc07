"""What PostgreSQL is told about stubs, over a connection that keeps the statements.

PostgreSQL itself runs the suite of the stubs. Here it is said without it.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import MetaData
from sqlalchemy.dialects.postgresql import psycopg
from tests.idempotency.test_inserts_by_dialect import Connection, Result

from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_stubs import ROWS_MAX, SendRecords, StubInserts
from reliable_mq.outbox.stub import Position

TABLE = message_stub_table(MetaData(), "rmq_")
AT = utc_datetime(101.0)


def connection(*answers: Any) -> Any:
    dialect: Any = psycopg.dialect()  # type: ignore[no-untyped-call]
    return Connection(dialect, *answers)


def sent(name: str, offset: int) -> SendOutcome:
    return SendOutcome(name, offset, 160.0 + offset, Position("b", 3, offset))


def test_several_sends_are_recorded_by_one_array_for_each_column() -> None:
    records, asked = SendRecords(TABLE, "postgresql"), connection(Result(), Result())
    failed = [SendOutcome(name, 9, 300.0, error=f"why {name}") for name in "zy"]
    records.record_outcomes(asked, [sent("c", 1), *failed, sent("a", 2)], "me", 101.0)
    (first, of_sent), (second, of_failed) = asked.said
    assert of_sent == of_sent | {
        "id": ["a", "c"],
        "new_count": [2, 1],
        "next_time": [utc_datetime(162.0), utc_datetime(161.0)],
        "new_broker": ["b", "b"],
        "new_queue": [3, 3],
        "new_offset": [2, 1],
        "me": "me",
        "at": AT,
    }
    assert of_failed == of_failed | {
        "id": ["y", "z"],
        "new_count": [9, 9],
        "next_time": [utc_datetime(300.0)] * 2,
        "new_note": ["why y", "why z"],
        "me": "me",
        "at": AT,
    }
    for text in (first, second):
        assert " FOR UPDATE) UPDATE rmq_message_stub SET " in text  # in the order of the ids
        assert "FROM unnest(" in text
        assert "rmq_message_stub.owner = %(me)s" in text
        assert "owner=NULL, lease_until=NULL" in text
    assert "note" not in first
    assert "broker_name=" not in second


@pytest.mark.parametrize("outcome", [sent("a", 2), SendOutcome("a", 9, 300.0, error="why")])
def test_a_single_send_is_recorded_without_arrays(outcome: SendOutcome) -> None:
    records, asked = SendRecords(TABLE, "postgresql"), connection(Result())
    records.record_outcomes(asked, [outcome], "me", 101.0)
    ((text, values),) = asked.said
    assert "unnest" not in text
    assert (values["id"], values["me"], values["at"]) == ("a", "me", AT)


def row(name: str) -> dict[str, Any]:
    empty = dict.fromkeys(("tag", "message_key", "ordering_key", "content_type"), "")
    return empty | {
        "message_id": name,
        "topic": f"t-{name}",
        "content": b"x",
        "properties": "{}",
        "required_groups": "",
        "deliver_time": None,
        "correlation_id": None,
    }


def numbered(**numbers: int) -> Result:
    return Result(SimpleNamespace(message_id=name, seq=seq) for name, seq in numbers.items())


def test_several_stubs_are_inserted_by_one_array_for_each_column_and_keep_their_order() -> None:
    inserts, asked = StubInserts(TABLE, "postgresql"), connection(numbered(c=7, a=8, b=9))
    of_all: dict[str, Any] = dict.fromkeys(("resend_time", "create_date", "update_date"), AT)
    of_all |= {"owner": "me", "lease_until": AT}
    assert inserts.insert(asked, [row("c"), row("a"), row("b")], of_all) == [7, 8, 9]
    ((text, values),) = asked.said
    assert (values["message_id"], values["topic"]) == (["c", "a", "b"], ["t-c", "t-a", "t-b"])
    assert values["deliver_time"] == [None] * 3
    assert {name: values[name] for name in of_all} == of_all
    assert (values["status"], values["count"]) == (0, 0)
    assert text.startswith("INSERT INTO rmq_message_stub (message_id, topic, ")
    assert "unnest(" in text
    assert "ORDER BY" in text
    assert text.endswith("RETURNING rmq_message_stub.message_id, rmq_message_stub.seq")


def test_very_many_stubs_are_inserted_in_parts() -> None:
    names = [f"{number:05}" for number in range(ROWS_MAX + 2)]
    parts = [names[:ROWS_MAX], names[ROWS_MAX:]]
    answers = [numbered(**{name: int(name) for name in part}) for part in parts]
    inserts, asked = StubInserts(TABLE, "postgresql"), connection(*answers)
    of_all: dict[str, Any] = dict.fromkeys(("resend_time", "create_date", "update_date"), AT)
    of_all |= {"owner": None, "lease_until": None}
    assert inserts.insert(asked, [row(name) for name in names], of_all) == list(range(len(names)))
    assert [values["message_id"] for _, values in asked.said] == parts
