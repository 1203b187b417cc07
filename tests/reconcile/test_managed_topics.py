"""Topics stay managed when retention has removed their last stub: what is found there is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, delete
from tests.reconcile.cases import Cases
from tests.reconcile.ledgers import GRACE, NOW, TableWriter, message_id
from tests.reconcile.test_spark_reconcile import verdicts_in

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.runs.run_options import check, lack_of_stubs, managed_topics
from reliable_mq.reconcile.runs.spark_opening import hidden_by_retention
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile

OPTIONS = RunOptions("sqlite://", "store", "out", NOW, GRACE)


def test_managed_is_what_has_stubs_what_a_run_knew_and_what_is_declared() -> None:
    asked = replace(OPTIONS, managed=("refunds",), unmanaged=("trial",))

    assert managed_topics(asked, {"orders"}, {"mails", "trial"}) == ["mails", "orders", "refunds"]
    with pytest.raises(ConfigurationError, match="--unmanaged trial: there are stubs"):
        managed_topics(asked, {"trial"}, ())
    with pytest.raises(ConfigurationError, match="trial is given by --managed and by --unmanaged"):
        check(replace(asked, managed=("trial",)))


@pytest.mark.parametrize(
    ("change", "managed", "verdicts", "is_told"),
    [
        ({}, (), {"unmanaged": 2}, True),
        ({}, ("orders",), {"unmanaged": 2}, False),
        ({}, (), {}, False),  # an application that has sent nothing yet
        ({"unmanaged": ("metrics",)}, (), {"unmanaged": 2}, False),
    ],
)
def test_a_run_that_has_no_stub_to_hold_messages_against_is_not_clean(
    change: dict[str, Any], managed: tuple[str, ...], verdicts: dict[str, int], is_told: bool
) -> None:
    """Given messages and no stub, as in another application's database, then the run says so."""
    lack = lack_of_stubs(replace(OPTIONS, **change), managed, verdicts)

    assert (lack is not None) == is_told
    assert lack is None or "is it the right database and --table-prefix?" in lack


def test_unsettled_stubs_that_retention_hides_are_told_of(tmp_path: Path) -> None:
    """Given stubs that nobody has settled from before the time of which retention has removed
    messages, then a run that leaves that time out says how many; but not what nobody asked for."""
    url = f"sqlite:///{tmp_path}/shop.db"
    tables = TableWriter(url)
    for number, columns in enumerate(
        (
            {"resend_time": NOW},  # waits for a scheduler
            {"given_up": True},  # for a person
            {"status": 1},
            {"status": -1},  # nobody of us has written that
            {"status": 3},
            {"create_date": NOW - GRACE, "update_date": NOW - GRACE},
        )
    ):
        tables.stub(message_id(number), **columns)  # type: ignore[arg-type]
    tables.write()
    asked = replace(OPTIONS, database=url)
    judged = replace(asked, since=NOW - 2 * GRACE)

    assert hidden_by_retention(asked, judged) == {
        "old stubs": "4 that are not settled are from a time range in which retention has removed"
        " messages, and are not judged"
    }
    assert hidden_by_retention(judged, judged) == {}
    assert hidden_by_retention(asked, asked) == {}
    assert hidden_by_retention(replace(asked, since=NOW - 3 * GRACE), judged) == {}


@pytest.mark.spark
def test_orphans_are_found_where_no_stub_is_left(spark: SparkSession, tmp_path: Path) -> None:
    """Given a topic whose stubs a run has seen, when retention has removed all of them, then a full
    run finds the orphan in it, by itself and, where no run has been, when it is told; when the
    topic is to be managed no more, then nothing is."""
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    settled, queue = cases.new(ack=Verdict.SETTLED)
    cases.stub(settled, status=1, **cases.send(settled, queue))
    url, store = cases.write()
    options = RunOptions(url, store, tmp_path / "out", NOW, GRACE)
    reconcile(options)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(delete(cases.tables.stubs))
    engine.dispose()
    orphan = message_id(1_000)
    cases.store.send(orphan, b"body", queue_id=queue)
    cases.store.write()

    reconcile(options)
    found = verdicts_in(tmp_path / "out")
    reconcile(replace(options, unmanaged=("orders",)))
    forgotten = reconcile(options)
    declared = reconcile(replace(options, managed=("orders",), out=tmp_path / "declared"))

    assert found[orphan, ""] == Verdict.ORPHAN
    assert forgotten["verdicts"] == {"unmanaged": 2}
    assert declared["verdicts"] == {"orphan": 2}
    assert forgotten["exit_code"] == 2
    assert "there are none, and earlier runs knew none" in forgotten["whole"]["managed topics"]


@pytest.mark.spark
def test_a_topic_that_nobody_reads_is_told_until_a_group_commits_an_offset(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given a message that settled because the broker stored it, as one to a misspelt topic does,
    then the run says that nobody is known to read the topic, until a group has read it."""
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    settled, queue = cases.new(ack=Verdict.SETTLED)
    cases.stub(settled, status=1, **cases.send(settled, queue))
    url, store = cases.write()
    options = RunOptions(url, store, tmp_path / "out", NOW, GRACE)

    unread = reconcile(options)
    cases.passed("audit", queue)
    cases.store.write()
    read = reconcile(options)

    assert unread["unread_topics"] == [{"topic": "orders", "messages": 1}]
    assert read["unread_topics"] == []
    assert (unread["exit_code"], read["exit_code"]) == (0, 0)
