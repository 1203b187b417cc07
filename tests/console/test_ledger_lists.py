"""The lists of ledgers and of reconciliation: filters, pages that meet, wrong cursors."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, ODD, insert_rows, log, run, stub
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.console.all_lists import ROW_LISTS
from reliable_mq.console.file_runs import RUN_FILE_FINDINGS, RUN_FILES


@pytest.fixture(autouse=True)
def rows(mq: ReliableMQ) -> None:
    """Insert some rows of each ledger."""
    stubs = [stub(number, message_id=f"{number:032d}") for number in range(6)]
    insert_rows(mq.database, "message_stub", *stubs)
    logs = [log(each, state=number % 2) for number, each in enumerate(stubs)]
    logs[0] |= {"failure": "refused", "note": "out of attempts", "consume_date": None}
    insert_rows(mq.database, "consume_log", *logs, log(stubs[0], consumer_group="mails"))
    for number in range(5):
        planted = {
            "kind": "dead letter" if number else "stuck",
            "message_id": f"{number:032d}",
            "consumer_group": "billing",
            "topic": "orders",
            "reason": "why",
            "open_key": f"key {number}" if number < 3 else None,
            "close_reason": None if number < 3 else "retry",
            "create_date": NOW - timedelta(hours=number),
        }
        insert_rows(mq.database, "escalation", planted)
        act = {
            "create_date": NOW - timedelta(hours=number),
            "actor": "ada" if number else "otto",
            "action": "stub retry" if number < 2 else "stub void",
            "message_id": f"{number:032d}",
            "changed": number % 2,
            "run_id": "a" * 32 if number == 1 else None,
            "detail": json.dumps({"why": f"reason {number}"}),
        }
        insert_rows(mq.database, "audit", act)
    for name, numbers in (("run-1", (1, 2, 3)), ("run-2", (2, 3, 4))):
        insert_rows(mq.database, "reconcile_run", run(run_id=name, findings=3, is_clean=False))
        for number in numbers:
            finding = {
                "run_id": name,
                "message_id": f"{number:032d}",
                "topic": "orders" if number < 3 else "returns",
                "consumer_group": "billing",
                "verdict": "stuck",
                "create_date": NOW,
                "evidence": json.dumps({"sends": number}),
            }
            insert_rows(mq.database, "reconcile_finding", finding)


@pytest.mark.parametrize(
    ("address", "column", "found"),
    [
        ("consume-logs?group=mails", "message_id", [0]),
        ("consume-logs?state=received", "message_id", [4, 2, 0]),
        ("consume-logs?failed=yes", "message_id", [0]),
        (f"consume-logs?message={3:032d}", "message_id", [3]),
        ("consume-logs?topic=none", "message_id", []),
        ("consume-logs?since=-90m", "message_id", [1, 0, 0]),
        ("escalations?open=yes", "message_id", [2, 1, 0]),
        ("escalations?kind=stuck", "message_id", [0]),
        ("escalations?open=yes&no_dead_letters=yes", "message_id", [0]),
        ("escalations?since=-90m&topic=orders&group=billing", "message_id", [1, 0]),
        ("audit?by=otto", "message_id", [0]),
        ("audit?action=VOID&changed=yes", "message_id", [3]),
        ("audit?holds=reason%202", "message_id", [2]),
        (f"audit?work={'a' * 32}", "message_id", [1]),
        ("audit?since=-150m&until=-30m", "message_id", [2, 1]),
        ("findings?run=run-1", "message_id", [3, 2, 1]),
        ("findings?run=run-2&not_in=run-1", "message_id", [4]),
        ("findings?run=run-1&not_in=run-2", "message_id", [1]),
        ("findings?topic=returns&verdict=stuck", "message_id", [4, 3, 3]),
        ("verdicts?run=run-1", "findings", [2, 1]),
        ("verdicts?topic=returns", "findings", [2]),
        ("verdict-days?run=run-1", "findings", [2, 1]),
        ("verdict-days?topic=returns", "findings", [2]),
    ],
)
def test_a_filter_of_a_ledger_is_an_address(
    browse: Browse, address: str, column: str, found: list[int]
) -> None:
    client = browse()
    listed = client.get(f"/{address}&format=json").json()
    assert [int(row[column]) for row in listed] == found
    page = client.get(f"/{address}")
    assert page.status_code == 200
    assert page.text.count("<tr>") == (len(found) + 1 if found else 0)


@pytest.mark.parametrize("name", ["consume-logs", "escalations", "audit", "findings", "runs"])
def test_pages_of_each_ledger_meet(browse: Browse, name: str) -> None:
    client = browse()
    whole = client.get(f"/{name}?format=json").json()
    assert len(whole) >= 2
    seen: list[dict[str, Any]] = []
    path = f"/{name}?limit=2"
    while path:
        page = client.get(path).text
        check(page)
        seen += client.get(path + "&format=json").json()[:2]
        _, _, after = page.partition('rel="next" href="')
        path = after.partition('"')[0].replace("&amp;", "&")
    assert seen == whole


def test_the_reason_stands_first_in_the_evidence(mq: ReliableMQ, browse: Browse) -> None:
    evidence = {"sends": 1, "note": "", "dead_letter_reason": "no card"}
    finding = {"run_id": "run-3", "message_id": f"{9:032d}", "topic": "orders", "create_date": NOW}
    more = {"consumer_group": "billing", "verdict": "stuck", "evidence": json.dumps(evidence)}
    insert_rows(mq.database, "reconcile_finding", finding | more)
    page = browse().get("/findings?run=run-3").text
    assert "dead letter reason: no card, sends: 1, note: " in page
    assert "1 row<" in page


def test_a_wrong_cursor_is_told(browse: Browse, tmp_path: Path) -> None:
    client = browse(runs=tmp_path)
    for kind in ROW_LISTS:
        if kind.name in ("dead-letters", "groups", "queues", "brokers", "halves"):
            continue  # no broker can be asked here
        if kind in (RUN_FILES, RUN_FILE_FINDINGS):
            continue  # no folder of runs is given here
        for cursor in ("x", "[]", "[1,2,3,4]", "{}", "[null]", "[1e3]", "[true]", ODD):
            answer = client.get(f"/{kind.name}?cursor={quote(cursor)}")
            assert answer.status_code == 400, (kind.name, cursor)
            check(answer.text)


def test_every_list_takes_odd_texts_in_its_fields(browse: Browse) -> None:
    client = browse()
    for kind in ROW_LISTS:
        for field in kind.fields:
            for text in (ODD, "%", "'", "\\"):
                answer = client.get(f"/{kind.name}?{field.name}={quote(text, safe='')}")
                assert answer.status_code == (200 if field.kind == "text" else 400), field
                check(answer.text)
        assert client.get(f"/{kind.name}?{kind.fields[0].name}=%00").status_code == 400


def test_a_list_without_a_broker_says_so(browse: Browse) -> None:
    for name in ("dead-letters", "brokers", "topics", "queues?group=billing", "groups"):
        page = browse().get(f"/{name}")
        assert page.status_code == 200
        assert "Away:" in page.text
