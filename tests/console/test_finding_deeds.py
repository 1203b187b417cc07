"""Findings of a run are repaired from their list: planned, told, done once, on record."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.console.conftest import Browse
from tests.console.doing_steps import WHY, done, ended, look, start
from tests.console.planted_rows import NOW, ODD, insert_rows, run, stub
from tests.console.test_doing import acts, states
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.console import sql_findings
from reliable_mq.console.list_runs import finding_id
from reliable_mq.reconcile.judgement.evidence import evidence_of
from reliable_mq.reconcile.judgement.verdict import Verdict

REPAIR, VOID = "finding-repair", "finding-void"
RUN = "run-1"


class Judged(dict[str, Any]):
    """A row of a run's result in which what is not named is null."""

    def __missing__(self, name: str) -> None:
        return None


def finding(row: dict[str, Any], verdict: Verdict, **values: Any) -> dict[str, Any]:
    """Return the finding of a run about a stub, as the run writes it."""
    seen = {f"stub_{name}": row.get(name) for name in ("status", "count", "update_date", "offset")}
    judged = Judged(seen | {"verdict": str(verdict)} | values)
    return {
        "run_id": values.get("run_id", RUN),
        "message_id": row["message_id"],
        "consumer_group": values.get("group", "billing"),
        "topic": row["topic"],
        "verdict": str(verdict),
        "evidence": json.dumps(evidence_of(judged)),
        "create_date": NOW,
    }


def odd_stub(number: int, **values: Any) -> dict[str, Any]:
    """Return a stub whose last change has microseconds, which evidence has not."""
    changed = NOW - timedelta(hours=1, microseconds=123_457 + number)
    return stub(number, **{"update_date": changed, "resend_time": None, "count": 8, **values})


def plant(mq: ReliableMQ, *findings: dict[str, Any]) -> None:
    insert_rows(mq.database, "reconcile_run", run(run_id=RUN, findings=len(findings)))
    insert_rows(mq.database, "reconcile_finding", *findings)


def details(mq: ReliableMQ) -> list[dict[str, Any]]:
    column = mq.database.audit.c
    with mq.database.engine.connect() as connection:
        found = connection.execute(select(column.detail).order_by(column.seq))
        return [json.loads(row.detail) for row in found]


def notes(mq: ReliableMQ) -> set[str]:
    column = mq.database.stubs.c
    with mq.database.engine.connect() as connection:
        return set(connection.scalars(select(column.note)))


def test_a_marked_finding_is_repaired_once_and_the_audit_has_the_person_and_the_run(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [odd_stub(1), odd_stub(2)]
    insert_rows(mq.database, "message_stub", *rows)
    found = [finding(row, Verdict.NOT_SENT) for row in rows]
    plant(mq, *found)
    client = browse()
    page = client.get(f"/findings?run={RUN}")
    assert "Repair findings" in page.text
    marked = [finding_id(found[0])]
    first, second = look(client, REPAIR, ids=marked), look(client, REPAIR, ids=marked)
    assert "1 messages to send again: topic orders, group billing" in first.text
    assert "its consume log knows it" in first.text
    assert acts(mq) == []
    started = start(client, first)
    assert ended(client, started)["counts"]["done"] == 1
    assert states(mq) == {rows[0]["message_id"]: (0, 0), rows[1]["message_id"]: (0, 8)}
    ((actor, action, changed, number),) = acts(mq)
    assert (action, changed) == ("resend", 1)
    assert started.headers["location"] == f"/works/{number}"
    (detail,) = details(mq)
    assert (detail["why"], detail["run"], detail["outcome"]) == (WHY, RUN, "done")
    assert f"sent again by {actor}, run {RUN}" in notes(mq)
    counts = ended(client, start(client, second))["counts"]  # the other person's preview
    assert counts == {"done": 0, "changed since the preview": 1, "refused": 0}
    assert len(acts(mq)) == 1
    answer = look(client, REPAIR, ids=marked)
    assert answer.status_code == 409
    assert "has changed since the run" in answer.text


def test_all_that_a_filter_matches_are_repaired_by_their_verdicts(
    mq: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_findings, "_PAGE_ROWS", 2)
    lost = [odd_stub(number, offset=7, queue_id=1) for number in range(5)]
    placed = odd_stub(11, required_groups="", count=1)
    settled = odd_stub(12)
    by_hand = odd_stub(13)
    insert_rows(mq.database, "message_stub", *lost, placed, settled, by_hand)
    place = {"record_broker_name": "broker-a", "record_queue_id": 3, "record_queue_offset": 0}
    plant(
        mq,
        *(finding(row, Verdict.LOST, group=group) for row in lost for group in ("a", "b")),
        finding(placed, Verdict.SENT_NOT_MARKED, group="", **place),
        finding(settled, Verdict.CONSUMED_NOT_CONFIRMED),
        finding(by_hand, Verdict.DEAD_LETTERED),
    )
    client = browse()
    preview = look(client, REPAIR, query={"run": RUN})
    assert "5 messages to send again: topic orders, group a, b" in preview.text
    assert "1 messages to mark as stored by the broker: topic orders, no group" in preview.text
    assert "1 messages to confirm" in preview.text
    assert "1 dead-lettered: not by this action" in preview.text
    assert done(client, REPAIR, query={"run": RUN, "verdict": str(Verdict.LOST)}) == {"done": 5}
    counts = ended(client, start(client, preview))["counts"]
    assert counts == {"done": 2, "changed since the preview": 5, "refused": 0}
    assert states(mq)[placed["message_id"]] == (1, 1)
    assert states(mq)[settled["message_id"]] == (1, 8)
    assert states(mq)[by_hand["message_id"]] == (0, 8)
    with mq.database.engine.connect() as connection:
        column = mq.database.stubs.c
        wanted = select(column.broker_name, column.queue_id, column.offset)
        found = connection.execute(wanted.where(column.message_id == placed["message_id"])).one()
    assert tuple(found) == ("broker-a", 3, 0)


def test_what_changes_after_the_preview_is_told_and_left(mq: ReliableMQ, browse: Browse) -> None:
    rows = [odd_stub(number) for number in range(3)]
    insert_rows(mq.database, "message_stub", *rows)
    found = [finding(row, Verdict.NOT_SENT) for row in rows]
    plant(mq, *found)
    client = browse()
    previews = [
        look(client, REPAIR, ids=[finding_id(each) for each in found[:2]]),
        look(client, REPAIR, query={"run": RUN, "verdict": "not sent"}),
    ]
    table = mq.database.stubs
    with mq.database.engine.begin() as connection:  # within the millisecond of the evidence, too
        for row, by in ((rows[0], timedelta(microseconds=1)), (rows[2], timedelta(seconds=1))):
            later = update(table).values(update_date=row["update_date"] + by)
            connection.execute(later.where(table.c.message_id == row["message_id"]))
    counts = ended(client, start(client, previews[0]))["counts"]
    assert counts == {"done": 1, "changed since the preview": 1, "refused": 0}
    assert ended(client, start(client, previews[1]))["counts"]["done"] <= 1
    assert states(mq)[rows[2]["message_id"]] == (0, 8)


def test_a_finding_forbids_to_send_its_message_again_though_it_is_not_marked(
    mq: ReliableMQ, browse: Browse
) -> None:
    row = odd_stub(1)
    insert_rows(mq.database, "message_stub", row)
    sent = finding(row, Verdict.NOT_CONSUMED)
    plant(mq, sent, finding(row, Verdict.CONFIRMED_WITHOUT_LOG, group="mails"))
    for chosen in ({"ids": [finding_id(sent)]}, {"query": {"run": RUN, "group": "billing"}}):
        answer = look(browse(), REPAIR, **chosen)
        assert answer.status_code == 409
        assert "1 not consumed: not by this action" in answer.text
    assert acts(mq) == []


def test_messages_are_voided_unless_a_group_may_still_consume_them(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [odd_stub(1), odd_stub(2, required_groups="billing,mails")]
    insert_rows(mq.database, "message_stub", *rows)
    plant(mq, *(finding(row, Verdict.NOT_SENT) for row in rows))
    client = browse()
    started = start(client, look(client, VOID, query={"run": RUN}))
    counts = ended(client, started)["counts"]
    assert counts == {"done": 1, "changed since the preview": 0, "refused": 1}
    assert (
        "another required group may still consume it"
        in client.get(started.headers["location"]).text
    )
    assert states(mq) == {rows[0]["message_id"]: (2, 8), rows[1]["message_id"]: (0, 8)}
    assert sorted(act[1:3] for act in acts(mq)) == [("void", 0), ("void", 1)]


def test_what_cannot_be_repaired_is_told(
    mq: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = odd_stub(1)
    insert_rows(mq.database, "message_stub", row)
    rows = [finding(row, Verdict.NOT_SENT), finding(row, Verdict.NOT_SENT, run_id="run-2")]
    odd = finding(odd_stub(2, message_id=ODD[:32]), Verdict.NOT_SENT, group="b")
    plant(mq, *rows, odd | {"verdict": "none"}, finding(odd_stub(3), Verdict.NOT_SENT))
    client = browse()
    told = {
        "say of which run": look(client, REPAIR),
        "of several runs": look(client, REPAIR, ids=[finding_id(each) for each in rows]),
        "no run none": look(client, REPAIR, query={"run": "none"}),
        "no finding matches": look(client, REPAIR, query={"run": RUN, "topic": "x"}),
        "are of several": look(client, REPAIR, ids=[ODD]),
        "nothing would be done": look(client, REPAIR, ids=[finding_id(odd)]),
    }
    for line, answer in told.items():
        assert answer.status_code == 409, answer.text
        assert line in answer.text
        check(answer.text)
    gone = finding_id(finding(odd_stub(3), Verdict.NOT_SENT))
    assert "has changed since the run" in look(client, REPAIR, ids=[gone]).text
    monkeypatch.setattr(sql_findings, "FINDINGS_MAX", 2)
    assert "more than 2 findings match" in look(client, REPAIR, query={"run": RUN}).text
    assert acts(mq) == []
