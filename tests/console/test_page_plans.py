"""A page reads a bounded number of rows, whatever its filter is, in a table of any size."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, insert_rows, run

from reliable_mq import ReliableMQ
from reliable_mq.database import sql_windows
from reliable_mq.escalate import sql_stub_ways

ROWS, WINDOW, FEW = 20_000, 1_000, 500
UNCONFIRMED = [each for each in range(ROWS, 0, -1) if each % 400 < 2]
READ_MAX = 3_000
"""A step of a plan reads so many rows at most: a window, and what else there is of a few."""

# A stub each second, the newest now. The 300 oldest are of a topic that ended.
STUBS = """
INSERT INTO rmq_message_stub (message_id, topic, message_key, ordering_key, content, content_type,
    status, count, resend_time, required_groups, create_date, update_date, note, correlation_id)
SELECT lpad(n::text, 32, '0'), CASE WHEN n <= 300 THEN 'legacy' ELSE 'orders' END, 'order-' || n,
    '', 'x', '', CASE WHEN n % 400 < 2 THEN 0 WHEN n = 70 THEN 2 ELSE 1 END, 1,
    CASE WHEN n % 400 = 0 THEN CAST(:now AS timestamptz) END, 'billing',
    CAST(:now AS timestamptz) - interval '1 second' * (:rows - n), :now,
    CASE WHEN n % 5000 = 2 THEN 'odd' END,
    CASE WHEN n % 2 = 0 THEN 'nightly' WHEN n % 500 = 77 THEN 'r-' || n / 1000 END
FROM generate_series(1, :rows) AS n
"""
LOGS = """
INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name, queue_id, "offset",
    state, attempt, create_date, failure)
SELECT CASE WHEN seq % 2 = 0 THEN 'billing' ELSE 'stock' END, message_id, topic, 'a', 0, seq,
    CASE WHEN seq % 100 = 0 THEN 0 ELSE 1 END, 1, create_date,
    CASE WHEN seq % 6000 = 2 THEN 'late' END FROM rmq_message_stub
"""
SKIPPED = 'UPDATE rmq_consume_log SET duplicate_of = message_id WHERE "offset" IN (77, 14077)'
ESCALATIONS = """
INSERT INTO rmq_escalation (kind, message_id, topic, reason, create_date)
SELECT 'stuck', message_id, topic, '', create_date FROM rmq_message_stub
"""
AUDIT = """
INSERT INTO rmq_audit (create_date, actor, action, message_id, changed, detail)
SELECT create_date, CASE seq WHEN 40 THEN 'ada' ELSE 'otto' END, 'stub retry', message_id, 1, '{}'
FROM rmq_message_stub
"""
FINDINGS = """
INSERT INTO rmq_reconcile_finding (run_id, message_id, consumer_group, topic, verdict, evidence,
    create_date)
SELECT 'run-' || seq % 2, message_id, 'billing', topic,
    CASE seq WHEN 40 THEN 'orphan' ELSE 'stuck' END, '{}', create_date FROM rmq_message_stub
"""
CONSUMED = """
INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name, queue_id, "offset",
    state, attempt, create_date)
SELECT 'billing', message_id, topic, 'a', 0, seq, 1, 1, create_date FROM rmq_message_stub
WHERE seq % 400 = 1 AND seq NOT IN (1, 8001)
"""
CONFIRM = "UPDATE rmq_message_stub SET status = 1, resend_time = NULL WHERE seq = ANY(:seqs)"
TIMED = """
UPDATE rmq_consume_log SET message_id = upper(lpad(to_hex(
    (extract(epoch FROM create_date) * 1000)::bigint), 12, '0') || '70008' || lpad('', 15, '0'))
"""


@pytest.fixture
def large(mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch) -> ReliableMQ:
    """Give an application whose tables are large beside a window."""
    monkeypatch.setattr(sql_windows, "WINDOW_ROWS", WINDOW)
    monkeypatch.setattr(sql_windows, "COSTLY_ROWS", WINDOW)
    monkeypatch.setattr(sql_stub_ways, "FEW", FEW)
    monkeypatch.setattr(sql_stub_ways, "FEW_TOGETHER", FEW)
    with mq.database.engine.begin() as connection:
        connection.execute(text(STUBS), {"rows": ROWS, "now": NOW})
        for statement in (LOGS, SKIPPED, ESCALATIONS, AUDIT, FINDINGS):
            connection.execute(text(statement))
    for number in range(2):
        insert_rows(mq.database, "reconcile_run", run(run_id=f"run-{number}", findings=1))
    with mq.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("VACUUM ANALYZE"))
    return mq


@contextmanager
def steps_read(mq: ReliableMQ) -> Iterator[dict[str, int]]:
    """Give how many rows the largest step of each SELECT read, by its text."""
    found: dict[str, int] = {}

    def note(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        # By a cursor of its own in the same transaction, before it is really run.
        if re.match(r"\s*SELECT", statement) and "rmq_" in statement:
            with cursor.connection.cursor() as other:
                other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
                (plans,) = other.fetchone()
            found[statement] = max(map(_rows_of, _steps(plans[0]["Plan"])))

    engines = (mq.database.engine, mq.database.forgiving_engine)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _steps(each)


def _rows_of(step: dict[str, Any]) -> int:
    removed = step.get("Rows Removed by Filter", 0) + step.get("Rows Removed by Join Filter", 0)
    return int((step["Actual Rows"] + removed) * step["Actual Loops"])


ADDRESSES = (
    "/stubs",
    "/stubs?status=unconfirmed",
    "/stubs?status=voided",
    "/stubs?escalated=yes",
    "/stubs?topic=legacy",
    "/stubs?topic=orders",
    "/stubs?topic=none",
    "/stubs?key=order-77",
    "/stubs?correlation_id=r-7",
    "/stubs?correlation_id=nightly",
    "/stubs?correlation_id=nightly&topic=none",
    "/stubs?tag=none",
    "/stubs?note_holds=odd",
    "/stubs?group=billing",
    "/stubs?group=billing&status=unconfirmed",
    "/stubs?group=stock&status=unconfirmed",
    "/stubs?group=billing&escalated=yes&note_holds=odd",
    "/stubs?since=-10m&topic=none",
    "/stubs?until=-4h",
    "/stubs?since=-5h&until=-4h&tag=none",
    "/stubs?cursor=9000&tag=none",
    "/consume-logs",
    "/consume-logs?group=billing&failed=yes",
    "/consume-logs?state=received",
    "/consume-logs?state=received&topic=none",
    "/consume-logs?state=consumed",
    "/consume-logs?state=skipped",
    "/consume-logs?state=skipped&group=billing",
    "/consume-logs?failed=yes",
    "/consume-logs?group=stock&failed=yes",
    "/consume-logs?group=stock&topic=none",
    "/consume-logs?failed=yes&topic=none",
    f"/consume-logs?message={77:032d}",
    "/escalations?open=yes",
    "/escalations?since=-10m&group=none",
    "/audit?by=ada",
    "/audit?work=none",
    "/audit?since=-5h&until=-4h&by=ada",
    "/findings?verdict=orphan",
    "/findings?run=run-0&verdict=orphan",
    "/findings?run=run-1&not_in=run-0",
    f"/findings?message={77:032d}",
    f"/message?id={77:032d}",
    "/find?q=order-77",
    "/find?q=r-7",
    "/find?q=nightly",
    "/find?q=none",
)


def test_every_page_reads_a_bounded_number_of_rows(large: ReliableMQ, browse: Browse) -> None:
    client = browse()
    for address in ADDRESSES:
        with steps_read(large) as read:
            answer = client.get(address)
        assert answer.status_code in (200, 303), answer.text
        too_many = {said: rows for said, rows in read.items() if rows > READ_MAX}
        assert not too_many, f"{address}: {too_many}"
        assert read, address


FOUND: dict[str, list[int]] = {
    "/stubs?note_holds=odd": [15_002, 10_002, 5_002, 2],
    "/stubs?correlation_id=r-7": [7_577, 7_077],
    "/stubs?topic=legacy": list(range(300, 0, -1)),
    "/stubs?status=voided": [70],
    "/stubs?status=unconfirmed&note_holds=x": [],
    "/consume-logs?failed=yes": [18_002, 12_002, 6_002, 2],
    "/consume-logs?group=stock&failed=yes": [],
    "/consume-logs?state=skipped": [14_077, 77],
    "/consume-logs?group=stock&state=skipped": [14_077, 77],
    "/consume-logs?group=billing&state=skipped": [],
    "/consume-logs?group=billing&failed=yes": [18_002, 12_002, 6_002, 2],
    "/stubs?group=billing&status=unconfirmed": UNCONFIRMED,
    "/stubs?group=stock&status=unconfirmed": [],
    "/audit?by=ada": [40],
    "/findings?verdict=orphan": [40],
    "/findings?run=run-1&verdict=orphan": [],
}
"""The numbers of the messages on the pages of a list, by its path."""


def test_pages_of_windows_meet(large: ReliableMQ, browse: Browse) -> None:
    """All lists are looked at in the same tables: to fill them takes longer than to read them."""
    client = browse()
    for path, found in FOUND.items():
        seen = _seen(client, path)
        assert [each for page in seen for each in page] == found, path
        assert len(seen) <= ROWS // WINDOW + 2, path
        rows = json.loads(client.get(f"{path}&format=json").text)
        assert [int(row["message_id"]) for row in rows] == found, path


def _seen(client: TestClient, path: str) -> list[list[int]]:
    """Return the numbers of the messages on each page of a list."""
    seen, address = [], path
    while address:
        page = client.get(address)
        seen.append([int(each) for each in re.findall(r"/message\?id=0*(\d+)", page.text)])
        after = re.search(r'rel="next" href="([^"]*)"', page.text)
        address = after[1].replace("&amp;", "&") if after else ""
    return seen


UNCONSUMED = sorted([*range(400, ROWS + 1, 400), 1, 8001], reverse=True)
"""The numbers of the messages that `CONSUMED` leaves, the newest first."""


@pytest.fixture
def consumed(large: ReliableMQ, monkeypatch: pytest.MonkeyPatch) -> ReliableMQ:
    """A group has consumed most of what a page of it looks at, in small windows."""
    monkeypatch.setattr(sql_windows, "COSTLY_ROWS", 30)
    with large.database.engine.begin() as connection:
        connection.execute(text(CONSUMED))
    return large


@pytest.mark.usefixtures("consumed")
def test_a_group_that_has_consumed_most_is_asked_about_some_at_once(browse: Browse) -> None:
    seen = _seen(browse(), "/stubs?group=billing&status=unconfirmed")
    assert [len(each) for each in seen] == [15, 16, 15, 6]
    assert [each for page in seen for each in page] == UNCONSUMED


def test_what_is_confirmed_while_a_page_is_read_hides_no_other_stub(
    consumed: ReliableMQ, browse: Browse
) -> None:
    lost = set(UNCONSUMED[:10])

    def confirm(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "NOT (EXISTS" in statement and lost:
            with consumed.database.engine.begin() as connection:
                connection.execute(text(CONFIRM), {"seqs": sorted(lost)})
            lost.clear()

    event.listen(consumed.database.forgiving_engine, "after_cursor_execute", confirm)
    try:
        seen = _seen(browse(), "/stubs?group=billing&status=unconfirmed")
    finally:
        event.remove(consumed.database.forgiving_engine, "after_cursor_execute", confirm)
    assert not lost
    assert {*UNCONSUMED[10:]} <= {each for page in seen for each in page}


def test_a_window_without_a_row_says_that_there_are_older_ones(
    large: ReliableMQ, browse: Browse
) -> None:
    client = browse()
    empty = client.get("/audit?by=ada").text
    assert "No row matches in this part of the list" in empty
    assert "No entry matches" not in empty
    assert "Look further" in empty


def test_a_short_page_says_that_older_rows_were_not_looked_at(
    large: ReliableMQ, browse: Browse
) -> None:
    page = browse().get("/stubs?note_holds=odd&cursor=15003").text
    assert "1 row, from a place inside the list. Older rows were not looked at yet" in page


def test_times_lead_to_their_part_of_the_table(large: ReliableMQ, browse: Browse) -> None:
    client = browse()
    until = (NOW - timedelta(seconds=10_000)).strftime("%Y-%m-%dT%H:%M:%S")
    rows = client.get(f"/stubs?until={until}&limit=1&format=json").text
    newest = json.loads(rows)[0]["message_id"]
    assert int(newest) == ROWS - 10_001


def test_ids_with_times_lead_to_the_attempts_before_a_time(
    large: ReliableMQ, browse: Browse
) -> None:
    with large.database.engine.begin() as connection:
        connection.execute(text(TIMED))
    with large.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("VACUUM ANALYZE rmq_consume_log"))
    with steps_read(large) as read:
        page = browse().get("/consume-logs?until=-4h").text
    assert max(read.values()) <= READ_MAX
    assert page.count('<a class="id"') == 50
