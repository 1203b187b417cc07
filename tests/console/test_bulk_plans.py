"""The statements of bulk work use indexes, so that a part costs the same in a large table."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from tests.console.planted_rows import NOW

from reliable_mq import ReliableMQ
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.outbox.stub import StubEvent

ROWS, PARKED_EACH = 20_000, 40
PLANT = """
INSERT INTO rmq_message_stub (message_id, topic, message_key, content, content_type, status, count,
    resend_time, required_groups, create_date, update_date)
SELECT lpad(n::text, 32, '0'), 'orders', 'order-' || n, 'x', 'text/plain',
    CASE WHEN n % :each = 0 THEN 0 ELSE 1 END, 8, NULL, 'billing', :at, :at
FROM generate_series(1, :rows) AS n
"""


@pytest.fixture
def many(mq: ReliableMQ) -> ReliableMQ:
    """Give an application with many settled stubs, of which a part waits for a person."""
    with mq.database.engine.begin() as connection:
        at = NOW - timedelta(hours=1)
        connection.execute(text(PLANT), {"rows": ROWS, "each": PARKED_EACH, "at": at})
    with mq.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("ANALYZE rmq_message_stub"))
    return mq


def test_a_bulk_retry_reads_no_table_from_end_to_end(many: ReliableMQ) -> None:
    asked: list[tuple[str, Any]] = []
    engine = many.database.forgiving_engine
    actions = OperatorActions(many.database, StubEvent.RETRY, actor="ada", why="test")
    chosen = actions.chosen(StubFilter(topic="orders"))
    until = datetime.now(UTC)

    def note(_c: object, _cursor: object, said: str, values: Any, *_more: object) -> None:
        asked.append((said, values))

    event.listen(engine, "before_cursor_execute", note)
    assert sum(each.number for each in chosen.sums(until)) == ROWS // PARKED_EACH
    for seen in chosen.seen_pages(until, 100):
        assert all(actions.change_seen(seen).values())
        break
    event.remove(engine, "before_cursor_execute", note)
    plans = {}
    with engine.connect() as connection:
        for said, values in asked:
            if re.match(r"\s*(SELECT|UPDATE)", said) and "rmq_message_stub" in said:
                found = connection.exec_driver_sql(f"EXPLAIN {said}", values).scalars().all()
                plans[said] = "\n".join(found)
        connection.rollback()
    assert len(plans) >= 4
    for said, plan in plans.items():
        assert "Seq Scan on rmq_message_stub" not in plan, f"{said}\n{plan}"
