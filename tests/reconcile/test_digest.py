"""Telling people of what runs found: what is news, what is closed; a mail server that is down."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from sqlalchemy import insert
from tests.reconcile.ledgers import NOW
from tests.resend.worlds import MemoryNotifier, World

from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.escalate.alerts import LogNotifier
from reliable_mq.escalate.smtp_notifier import SmtpNotifier
from reliable_mq.reconcile.report.digest import NewFindings, reason_of
from reliable_mq.reconcile.report.sql_digest import escalate_news

LOST, STUCK = "lost by the broker", "stuck"


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    made = World(database_url)
    yield made
    made.database.close()


def run(
    world: World,
    run_id: str,
    found: Mapping[str, str],
    *,
    repaired: str = "",
    total: int | None = None,
    flaws: Mapping[str, str] = MappingProxyType({}),
    changed_since: str | None = None,
    **window: Any,
) -> int:
    """Record a run that found `found`, message by verdict, and tell of it; return the news.

    `flaws`: what its ledgers lacked; `changed_since`: it is an increment behind another one.
    """
    metadata, prefix = world.database.metadata, world.database.prefix
    runs, findings = run_table(metadata, prefix), finding_table(metadata, prefix)
    row = {"run_id": run_id, "as_of": NOW, "grace_seconds": 600, "store": "s", "finish_date": NOW}
    row |= {"verdicts": "{}", "ledgers": "{}", "findings": len(found), "is_clean": not found}
    row["whole"] = json.dumps(dict(flaws))
    with world.database.engine.begin() as connection:
        connection.execute(insert(runs).values(**row, **window))
        for message, verdict in found.items():
            proof = {"topic": "orders", "evidence": "{}", "create_date": NOW}
            key = {"run_id": run_id, "message_id": message, "consumer_group": "g"}
            connection.execute(insert(findings).values(verdict=verdict, **key, **proof))
        for message in repaired:
            act = {"actor": "reconcile", "action": "resend", "message_id": message, "detail": "{}"}
            done = {"run_id": run_id, "changed": 1, "create_date": NOW}
            connection.execute(insert(world.database.audit).values(**act, **done))
    summary = {"run_id": run_id, "findings_kept": len(found), "report": "/reports/1.html"}
    summary["findings_total"] = len(found) if total is None else total
    summary["repair"] = {"changed": len(repaired)} if repaired else None
    summary["whole"] = {"consumer progress": None, **flaws}
    summary["increment"] = {"changed_since": changed_since} if changed_since else None
    url = world.database.url.render_as_string(hide_password=False)
    return escalate_news([url], prefix, summary)


def test_only_what_nobody_was_told_of_is_news(world: World) -> None:
    """Given a run that was told of, when the next one finds the same and more, then only what came
    is news; when a finding is of another verdict now, that is news too."""
    assert run(world, "r1", {"a": LOST, "b": STUCK}) == 2
    assert run(world, "r2", {"a": LOST, "b": STUCK}) == 0
    assert run(world, "r3", {"a": LOST, "b": LOST, "c": STUCK}) == 2

    assert world.open_escalations() == [("reconciliation", "r1"), ("reconciliation", "r3")]
    rows = world.rows(world.database.escalations)
    assert rows[0]["reason"] == (
        "2 new findings: 1 lost by the broker, 1 stuck; the oldest is message a;"
        " report: /reports/1.html"
    )
    assert "1 told of before" in rows[1]["reason"]


def test_what_is_good_again_is_closed_by_the_run_that_looked_at_it(world: World) -> None:
    """Given runs that were told of, when a later one looked at their messages and found none of it,
    then they are closed; and what is lost once more is news again."""
    day = timedelta(days=1)
    run(world, "r1", {"a": LOST}, since=NOW - day, until=NOW)
    run(world, "r2", {"b": LOST}, since=NOW - 3 * day, until=NOW)

    run(world, "r3", {}, since=NOW - 2 * day, until=NOW)
    assert world.open_escalations() == [("reconciliation", "r2")], "r3 did not look that far back"
    run(world, "r4", {}, total=5)
    assert len(world.open_escalations()) == 1, "of more findings than are kept nobody can know"

    assert run(world, "r5", {"a": LOST}) == 1
    closed = {row["message_id"]: row["close_reason"] for row in world.rows(_escalations(world))}
    assert closed == {"r1": "reconciled", "r2": "reconciled", "r5": None}


def _escalations(world: World) -> Any:
    return world.database.escalations


def test_what_the_run_has_repaired_is_no_news(world: World) -> None:
    assert run(world, "r1", {"a": LOST, "b": LOST, "c": STUCK}, repaired="ab") == 1

    (row,) = world.rows(world.database.escalations)
    assert row["reason"].startswith("1 new finding: 1 stuck; the oldest is message c; 2 others rep")
    assert run(world, "r2", {"d": LOST}, repaired="d") == 0


def test_a_log_that_is_damaged_is_told_though_nothing_was_found(world: World) -> None:
    """Given a run whose broker log is damaged, then a person is told, once; other damage is news;
    an increment, which reads other parts of the log, closes nothing, a run over all of it does."""
    damage = {"broker log": "1 stretches, together 10 bytes, are no records"}
    more = {"broker log": "2 stretches, together 99 bytes, are no records"}

    assert run(world, "r1", {}, flaws=damage) == 1
    assert run(world, "r2", {}, flaws=damage) == 0
    assert run(world, "r3", {"a": LOST}, flaws=more) == 2
    assert run(world, "r4", {}, changed_since="2026-11-19") == 0
    assert run(world, "r5", {}, flaws=more) == 0
    assert world.open_escalations() == [("reconciliation", "r3")]
    assert run(world, "r6", {}) == 0

    rows = world.rows(_escalations(world))
    assert rows[0]["reason"] == (
        "not whole: broker log: 1 stretches, together 10 bytes, are no records;"
        " report: /reports/1.html"
    )
    assert (
        "1 new finding: 1 lost by the broker; the oldest is message a; not whole: broker log: 2"
        in (rows[1]["reason"])
    )
    assert world.open_escalations() == []


def test_a_mail_server_that_is_down_loses_nothing(world: World) -> None:
    """Given a mail server that is down while two runs find something, when it is back, then one
    digest tells of both, once."""
    mail = MemoryNotifier("mail")
    mail.is_down = True
    alerts = world.alerts(mail)
    run(world, "r1", {"a": LOST})
    assert alerts.send_due_digests(100.0) == (0, 1)
    run(world, "r2", {"a": LOST, "b": STUCK})

    mail.is_down = False
    assert world.alerts(mail, owner="two").send_due_digests(10_000.0) == (1, 0)
    assert world.alerts(mail, owner="two").send_due_digests(20_000.0) == (1, 0)
    assert world.alerts(mail, owner="three").send_due_digests(30_000.0) == (0, 0)
    assert mail.told == [["r1"], ["r2"]]
    assert mail.digests[0].headline == (
        "[shop] 1 reconciliation waits for a person: 1 reconciliation"
    )


def test_a_notifier_that_belongs_to_others_is_left_to_them(world: World) -> None:
    run(world, "r1", {"a": LOST})

    assert world.alerts(LogNotifier()).send_due_digests(100.0, but={"log"}) == (0, 0)  # type: ignore[arg-type]
    assert world.alerts(LogNotifier()).send_due_digests(100.0) == (1, 0)  # type: ignore[arg-type]


def test_a_mail_and_the_log_say_it_in_their_words(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run(world, "r1", {"a": LOST})
    mail = MemoryNotifier("mail")
    world.alerts(mail, LogNotifier()).send_due_digests(100.0)  # type: ignore[arg-type]

    assert "reconciliation: run r1: 1 new finding: 1 lost by the broker" in caplog.text
    letter = SmtpNotifier("smtp://127.0.0.1:1", sender="a@b.example", recipients="c@d.example")
    text = letter._filled("escalation.txt", mail.digests[0])
    assert "     1  reconciliation, since" in text
    assert "r1\n    reconciliation: 1 new finding" in text


def test_many_verdicts_are_told_in_their_order() -> None:
    news = NewFindings({"stuck": 2, "not sent": 1}, {"stuck": "b", "not sent": "a"})
    summary = {"findings_total": 10, "repair": {"changed": 3}, "report": "s3a://x/report.html"}

    assert reason_of(news, summary) == (
        "3 new findings: 1 not sent, 2 stuck; the oldest is message a; 3 others repaired;"
        " 4 told of before, or beyond what the table keeps; report: s3a://x/report.html"
    )
