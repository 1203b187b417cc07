"""Whole runs on Spark: every way into a verdict, a rival implementation, repair, and reports."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, create_engine, delete, insert, select
from tests.reconcile.cases import BODY, Cases, every_case, random_cases
from tests.reconcile.ledgers import (
    GRACE,
    JUST_NOW,
    LONG_AGO,
    NOW,
    StoreWriter,
    TableWriter,
    message_id,
)
from tests.reconcile.plain import PlainReconciliation

from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_people_tables import audit_table
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_scheduling_tables import retention_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.verdict import FINDINGS, Verdict
from reliable_mq.reconcile.repairs.repair import FindingChoice
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture(autouse=True)
def databases_are_asked_for_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let repairs happen at the moment of the judgement."""
    monkeypatch.setattr(DatabaseClock, "now_on", lambda *_: NOW.timestamp())


def options(url: str, store: str, out: Path, **more: Any) -> RunOptions:
    return RunOptions(database=url, store=store, out=out, now=NOW, grace=GRACE, **more)


def verdicts_in(out: Path) -> dict[tuple[str, str], str]:
    rows = (
        duckdb.connect()
        .execute(
            f"SELECT message_id, consumer_group, verdict FROM '{out}/verdicts.parquet/*.parquet'"
        )
        .fetchall()
    )
    assert len({row[:2] for row in rows}) == len(rows), "one verdict per message and group"
    return {(message, group): verdict for message, group, verdict in rows}


def rows_of(url: str, table: Any) -> list[dict[str, Any]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [dict(row) for row in connection.execute(select(table)).mappings()]
    engine.dispose()
    return found


def test_every_way_into_a_verdict_is_judged_so(tmp_path: Path) -> None:
    """Given one message for each way, when they are reconciled, then each has its verdict, all are
    there and nothing else; findings are in the report, in the table and proved."""
    url = f"sqlite:///{tmp_path}/shop.db"
    expected, store = every_case(url, tmp_path / "store")

    summary = reconcile(options(url, store, tmp_path / "out"))

    assert verdicts_in(tmp_path / "out") == expected
    assert set(expected.values()) == set(Verdict) - {Verdict.DUPLICATE_EFFECT}
    assert summary["verdicts"] == Counter(map(str, expected.values()))
    found = {key: verdict for key, verdict in expected.items() if verdict in FINDINGS}
    told = {(f["message_id"], f["consumer_group"]): f["verdict"] for f in summary["findings"]}
    assert told == found
    assert (summary["clean"], summary["exit_code"]) == (False, 2)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(message in page for message, _ in found)
    assert "http://" not in page.replace("http://www.w3.org", "")
    kept = rows_of(url, finding_table(MetaData(), "rmq_"))
    assert {(r["message_id"], r["consumer_group"]): r["verdict"] for r in kept} == found
    (run,) = rows_of(url, run_table(MetaData(), "rmq_"))
    assert (run["findings"], run["is_clean"]) == (len(found), False)
    proofs = {f["verdict"]: f["evidence"] for f in summary["findings"]}
    (increment_summary,) = (f for f in summary["findings"] if f["evidence"].get("given_up_by"))
    assert increment_summary["evidence"]["given_up_by"] == "payments"
    assert increment_summary["says"].startswith("the stub says that the group gave it up")
    assert proofs["lost by the broker"]["acknowledged_queue_offset"] == 7
    assert proofs["dead-lettered"]["dead_letter_reason"] == "no such card"
    differing = [f for f in summary["findings"] if f["verdict"] == "content differs"]
    by_crc = {f["evidence"]["content_crc"] == f["evidence"]["record_crc"] for f in differing}
    assert by_crc == {True, False}  # a changed tag leaves the content as it is
    assert proofs["stuck"]["stub_status"] == "UNCONFIRMED"


@pytest.mark.parametrize("seed", [1])
def test_a_rival_in_plain_python_agrees_on_random_ledgers(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    store = random_cases(url, tmp_path / "store", seed, 1_500)

    reconcile(options(url, store, tmp_path / "out"))

    rival = PlainReconciliation(url, store, NOW, GRACE).verdicts()
    assert verdicts_in(tmp_path / "out") == rival
    assert len(set(rival.values())) > 10


@pytest.mark.parametrize("server", ["postgres_url", "mysql_url"])
def test_a_repair_makes_the_next_run_clean_and_is_audited(
    tmp_path: Path, server: str, request: pytest.FixtureRequest
) -> None:
    """Given findings that can be repaired, on PostgreSQL and on MariaDB or MySQL; when they are
    planned, nothing changes; when they are applied, the stubs are due, marked, confirmed; when the
    scheduler has sent what is due and the group consumed it, then nothing is found."""
    cases = Cases(request.getfixturevalue(server), tmp_path / "store")
    sent, queue = cases.new(payments=Verdict.SENT_NOT_MARKED)
    cases.send(sent, queue)
    cases.stub(sent, "payments")
    known, queue = cases.new(payments=Verdict.CONSUMED_NOT_CONFIRMED)
    cases.stub(known, "payments", **cases.send(known, queue))
    cases.tables.log(known, "payments", 1)
    lost, queue = cases.new(payments=Verdict.LOST)
    cases.stub(lost, "payments", broker_name="broker-a", queue_id=queue, offset=9, count=1)
    acknowledged, queue = cases.new(ack=Verdict.LOST)
    place = {"broker_name": "broker-a", "queue_id": queue, "offset": 9, "count": 16}
    cases.stub(acknowledged, status=1, resend_time=None, **place)
    held, queue = cases.new(payments=Verdict.STUCK)
    cases.stub(held, "payments", **cases.send(held, queue))
    cases.passed("payments", queue)
    dead = {"owner": "worker-1", "lease_until": LONG_AGO, "attempt": 16}
    cases.tables.log(held, "payments", 0, **dead)
    given_up, queue = cases.new(payments=Verdict.DEAD_LETTERED)
    cases.stub(given_up, "payments", **cases.send(given_up, queue))
    letter = {"UNIQ_KEY": given_up, "RETRY_TOPIC": "orders", "DEAD_LETTER_REASON": "no such card"}
    cases.store.add("%DLQ%payments", BODY, properties=letter, reconsume_times=16)
    url, store = cases.write()
    stubs = message_stub_table(MetaData())
    asked = {"choice": FindingChoice(void=frozenset({Verdict.DEAD_LETTERED}))}
    before = rows_of(url, stubs)

    planned = reconcile(options(url, store, tmp_path / "out", repair="plan", **asked))

    assert verdicts_in(tmp_path / "out") == cases.expected
    actions = {a["message_id"]: a["action"] for a in planned["repair"]["actions"]}
    expected = {sent: "mark", known: "confirm", lost: "resend", acknowledged: "resend"}
    expected |= {held: "release", given_up: "void"}
    assert actions == expected
    assert rows_of(url, stubs) == before

    applied = reconcile(options(url, store, tmp_path / "out", repair="apply", **asked))

    assert applied["repair"]["changed"] == 6
    after = {row["message_id"]: row for row in rows_of(url, stubs)}
    for identity in (lost, acknowledged):
        stub = after[identity]
        assert (stub["status"], stub["count"], stub["resend_time"]) == (0, 0, NOW)
        assert (stub["broker_name"], stub["offset"]) == (None, None)
    assert (after[sent]["broker_name"], after[sent]["offset"]) == ("broker-a", 0)
    assert (after[known]["status"], after[known]["resend_time"]) == (1, None)
    audited = rows_of(url, audit_table(MetaData(), "rmq_"))
    assert {row["message_id"]: row["action"] for row in audited} == expected
    assert applied["repair"]["by_action"]["resend"] == {"planned": 2, "changed": 2}
    assert applied["repair"]["outcomes"] == {"done": 6}
    assert (after[held]["count"], after[given_up]["status"]) == (0, 2)
    (log,) = (r for r in rows_of(url, cases.tables.logs) if r["message_id"] == held)
    assert (log["owner"], log["attempt"], log["in_doubt"]) == (None, 0, True)

    _send_what_is_due(url, cases.store, (lost, acknowledged, held))
    again = reconcile(options(url, store, tmp_path / "out", repair="apply"))

    assert again["clean"], again["findings"]
    assert again["repair"] is None
    assert len(rows_of(url, audit_table(MetaData(), "rmq_"))) == 6


def _send_what_is_due(url: str, store: StoreWriter, identities: tuple[str, ...]) -> None:
    """Do what the scheduler does: send again, and record where the broker has it."""
    stubs = message_stub_table(MetaData())
    engine = create_engine(url)
    with engine.begin() as connection:
        for queue_id, identity in enumerate(identities, 50):
            record = store.send(identity, BODY, queue_id=queue_id)
            settled = 1 if queue_id == 51 else 0
            connection.execute(
                stubs.update()
                .where(stubs.c.message_id == identity)
                .values(broker_name="broker-a", queue_id=queue_id, offset=0, status=settled)
            )
            assert record.queue_offset == 0
    engine.dispose()
    store.write()


def test_a_window_judges_only_the_messages_of_its_time(tmp_path: Path, spark: SparkSession) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    store = random_cases(url, tmp_path / "store", 3, 200)
    since, until = NOW - GRACE * 2, NOW - GRACE / 2

    reconcile(options(url, store, tmp_path / "out", since=since, until=until))

    whole = PlainReconciliation(url, store, NOW, GRACE).verdicts()
    low, high = (int(moment.timestamp() * 1000) for moment in (since, until))
    inside = {key: v for key, v in whole.items() if low <= int(key[0][:12], 16) < high}
    assert verdicts_in(tmp_path / "out") == inside
    assert 0 < len(inside) < len(whole)
    assert spark.sparkContext.defaultParallelism > 0, "the session is the caller's and still runs"


def test_what_retention_may_have_removed_is_not_judged(tmp_path: Path) -> None:
    # Given messages of which some are from before retention's mark, and their stubs are gone
    url = f"sqlite:///{tmp_path}/shop.db"
    store = random_cases(url, tmp_path / "store", 3, 100)
    mark = NOW - GRACE * 2
    metadata = MetaData()
    duties, stubs = retention_table(metadata, "rmq_"), message_stub_table(metadata)
    engine = create_engine(url)
    duties.create(engine)
    removed = f"{int(mark.timestamp() * 1000):012X}"
    with engine.begin() as connection:
        connection.execute(delete(stubs).where(stubs.c.message_id < removed))
        marks = {"stubs_removed_until": mark, "logs_removed_until": mark - GRACE}
        connection.execute(insert(duties).values(duty="rows", **marks))
    engine.dispose()

    # When all is reconciled, Then only what came later is judged, and the summary says so
    summary = reconcile(options(url, store, tmp_path / "out"))
    inside = {
        key: verdict
        for key, verdict in PlainReconciliation(url, store, NOW, GRACE).verdicts().items()
        if int(key[0][:12], 16) >= int(mark.timestamp() * 1000)
    }
    assert verdicts_in(tmp_path / "out") == inside
    assert summary["since"] == mark.isoformat().replace("+00:00", "Z")
    with pytest.raises(ConfigurationError, match="retention has removed messages from before"):
        reconcile(options(url, store, tmp_path / "out", until=mark))


def test_a_window_does_not_tear_messages_with_ids_that_tell_no_time(tmp_path: Path) -> None:
    """Given ids that the application chose, when a window is judged, then stub, record and consume
    log of a message are in it together or not at all, by the first trace of the message."""
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    inside, outside = "f47ac10b58cc4372a5670e02b2c3d479", "0e02b2c3d479437258ccf47ac10ba567"
    for identity, born in ((inside, LONG_AGO), (outside, LONG_AGO - timedelta(days=1))):
        place = cases.send(identity, 0, store_time=LONG_AGO)
        cases.stub(identity, "payments", status=1, create_date=born, **place)
        cases.tables.log(identity, "payments", 1, create_date=NOW - GRACE)
    url, store = cases.write()

    summary = reconcile(
        options(url, store, tmp_path / "out", since=LONG_AGO - GRACE, until=LONG_AGO + GRACE)
    )

    assert verdicts_in(tmp_path / "out") == {(inside, "payments"): Verdict.SETTLED}
    assert summary["clean"]


def test_ledgers_of_several_databases_are_judged_as_one_and_repaired_where_they_lie(
    tmp_path: Path,
) -> None:
    """Given stubs in two databases, consume logs of one group in the other one and of another group
    in none that is known but by its notices, then each message has one verdict."""
    elsewhere = TableWriter(f"sqlite:///{tmp_path}/billing.db")
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    settled, queue = cases.new(ledger=Verdict.SETTLED, audit=Verdict.SETTLED)
    cases.stub(settled, "audit", "ledger", status=1, **cases.send(settled, queue))
    elsewhere.log(settled, "ledger", 1, confirm_to="rmq_notices_1")
    cases.tables.told(settled, "audit", 1)
    cases.tables.told(settled, "ledger", 1)  # its own log counts, not what it told
    known, queue = cases.new(ledger=Verdict.CONSUMED_NOT_CONFIRMED)
    cases.stub(known, "ledger", **cases.send(known, queue))
    elsewhere.log(known, "ledger", 1, confirm_to="rmq_notices_1")
    telling, queue = cases.new(ledger=Verdict.IN_FLIGHT)
    cases.stub(telling, "ledger", **cases.send(telling, queue))
    elsewhere.log(telling, "ledger", 1, confirm_to="rmq_notices_1", consume_date=JUST_NOW)
    forgotten, queue = cases.new(ledger=Verdict.CONFIRMED_WITHOUT_LOG)
    cases.stub(forgotten, "ledger", status=1, **cases.send(forgotten, queue))
    cases.tables.told(forgotten, "ledger", 1)
    twice, queue = cases.new(ledger=Verdict.DUPLICATE_EFFECT)
    cases.stub(twice, "ledger", status=1, **cases.send(twice, queue))
    cases.tables.log(twice, "ledger", 1)
    elsewhere.log(twice, "ledger", 1, create_date=NOW - GRACE * 2)
    lost, queue = cases.new(payments=Verdict.LOST)
    place = {"broker_name": "broker-a", "queue_id": queue, "offset": 9, "count": 1}
    elsewhere.stub(lost, b"{}", required_groups="payments", **place)
    cases.send(message_id(77), 0, topic="rmq_notices_0123456789abcdef")
    twin, queue = cases.new(ack=Verdict.SETTLED)
    cases.stub(twin, status=1, **cases.send(twin, queue))
    elsewhere.stub(twin, b"{}", create_date=NOW - GRACE * 2)
    url, store = cases.write()
    others = (elsewhere.write(),)

    summary = reconcile(options(url, store, tmp_path / "out", others=others, repair="apply"))

    assert verdicts_in(tmp_path / "out") == cases.expected
    assert summary["twin_ids"] == {"count": 1, "first": [twin]}
    assert (
        f"two stubs, in two databases, and the older stub was judged; the first id is {twin}"
        in (summary["whole"]["message ids"])
    )
    assert {a["message_id"]: a["outcome"] for a in summary["repair"]["actions"]} == {
        known: "done",
        lost: "done",
    }
    stubs = message_stub_table(MetaData())
    assert {row["message_id"]: row["status"] for row in rows_of(url, stubs)}[known] == 1
    (stub,) = (row for row in rows_of(others[0], stubs) if row["message_id"] == lost)
    assert (stub["count"], stub["resend_time"]) == (0, NOW)
    assert len(rows_of(others[0], audit_table(MetaData(), "rmq_"))) == 1


def test_ledgers_of_several_brokers_are_refused(tmp_path: Path) -> None:
    """Given stubs acknowledged by two brokers, when they are judged by the store of one, then the
    run says so and writes nothing, instead of calling the other's messages lost."""
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    here, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(here, "payments", **cases.send(here, queue))
    place = {"broker_name": "broker-b", "queue_id": queue, "offset": 3}
    elsewhere = message_id(999_999, JUST_NOW)
    cases.stub(elsewhere, "payments", create_date=JUST_NOW, **place)
    url, store = cases.write()

    with pytest.raises(ConfigurationError, match="the brokers broker-a, broker-b, but --store"):
        reconcile(options(url, store, tmp_path / "out", repair="apply"))

    assert not (tmp_path / "out").exists()
    early = options(url, store, tmp_path / "out", until=JUST_NOW, broker_name="broker-b")
    with pytest.raises(ConfigurationError, match="the broker broker-a, but --broker-name says"):
        reconcile(early)


def test_one_broker_is_judged_when_the_window_leaves_out_the_other(tmp_path: Path) -> None:
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    here, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(here, "payments", **cases.send(here, queue))
    place = {"broker_name": "broker-b", "queue_id": queue, "offset": 3}
    cases.stub(message_id(999_999, JUST_NOW), "payments", create_date=JUST_NOW, **place)
    url, store = cases.write()

    reconcile(options(url, store, tmp_path / "out", until=JUST_NOW))

    assert verdicts_in(tmp_path / "out") == cases.expected
