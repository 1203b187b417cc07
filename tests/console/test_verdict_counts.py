"""The findings of a run are counted by verdict, topic and group, and by the day of the message."""

from datetime import datetime, timedelta
from typing import Any

from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, insert_rows, run

from reliable_mq import ReliableMQ
from reliable_mq.console.kept import KeptResults
from reliable_mq.measuring.sql_throughput import first_id


def _of_day(number: int, moment: datetime, **more: Any) -> dict[str, Any]:
    """Return a finding about a message whose id begins with a time."""
    finding = {"run_id": "run-1", "message_id": f"{first_id(moment)}70008{number:015X}"}
    finding |= {"topic": "orders", "consumer_group": "billing", "verdict": "stuck"}
    return finding | {"create_date": NOW, "evidence": "{}"} | more


def test_findings_are_counted_by_the_day_of_their_message(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "reconcile_run", run(run_id="run-1", findings=8, as_of=NOW))
    today = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday, long_ago = today - timedelta(milliseconds=1), today - timedelta(days=90)
    rows = [_of_day(number, today) for number in range(3)]
    rows += [_of_day(4, yesterday), _of_day(5, yesterday, topic="returns")]
    rows += [_of_day(6, long_ago), _of_day(7, NOW, message_id="of-a-sender")]
    rows.append(_of_day(8, today, message_id="7F00000100002A9F0000000000000001"))
    rows.append(_of_day(9, today, message_id="0001-of-a-sender"))
    insert_rows(mq.database, "reconcile_finding", *rows)

    client = browse()
    found = client.get("/verdict-days?format=json").json()
    listed = [(each["day"], each["topic"], each["findings"]) for each in found]
    assert listed == [
        (f"{today:%Y-%m-%d}", "orders", 3),
        (f"{yesterday:%Y-%m-%d}", "orders", 1),
        (f"{yesterday:%Y-%m-%d}", "returns", 1),
        (f"before {today - timedelta(days=30):%Y-%m-%d}", "orders", 1),
        ("", "orders", 3),
    ]
    page = client.get("/verdict-days?run=run-1&topic=returns").text
    assert page.count("<tr>") == 2


def test_a_run_that_nobody_knows_has_no_verdicts(mq: ReliableMQ, browse: Browse) -> None:
    assert browse().get("/verdict-days?run=none&format=json").json() == []


def test_a_run_that_ends_after_it_was_asked_for_is_counted(mq: ReliableMQ, browse: Browse) -> None:
    client = browse()
    insert_rows(mq.database, "reconcile_run", run(run_id="run-0", as_of=NOW))
    assert client.get("/verdicts?run=run-1&format=json").json() == []
    insert_rows(mq.database, "reconcile_run", run(run_id="run-1", findings=1, as_of=NOW))
    insert_rows(mq.database, "reconcile_finding", _of_day(1, NOW))
    (found,) = client.get("/verdicts?run=run-1&format=json").json()
    assert found["findings"] == 1


def test_a_clean_newest_run_has_no_verdicts(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "reconcile_run", run(run_id="run-1", findings=1, as_of=NOW))
    insert_rows(mq.database, "reconcile_finding", _of_day(1, NOW))
    insert_rows(mq.database, "reconcile_run", run(run_id="run-2", as_of=NOW))
    client = browse()
    for name in ("verdicts", "verdict-days"):
        assert client.get(f"/{name}?format=json").json() == []
        assert "the run was clean" in client.get(f"/{name}").text


def test_results_are_kept_for_a_while_and_not_too_many() -> None:
    now, read = [0.0], list[str]()
    kept = KeptResults(60.0, most=2, clock=lambda: now[0])

    def reading(key: str) -> int:
        read.append(key)
        return len(read)

    def get(key: str) -> int:
        return kept.get(key, lambda: reading(key))

    assert [get("a"), get("a"), get("b")] == [1, 1, 2]
    now[0] = 60.0
    assert get("a") == 3
    assert [get("c"), get("a"), get("b")] == [4, 3, 5]
    assert read == ["a", "b", "a", "c", "b"]
