"""Increments as runs: what they read, what they carry, and how they follow one another."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, create_engine, update
from tests.reconcile.cases import Cases
from tests.reconcile.judging import event
from tests.reconcile.ledgers import GRACE, NOW, message_id
from tests.reconcile.test_spark_reconcile import rows_of, verdicts_in

from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.event_rows import NONE, PADDING, bodies_of, event_rows
from reliable_mq.reconcile.judgement.events import EVENTS, RECORD
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.runs.run_plan import NO_RUN
from reliable_mq.reconcile.runs.spark_job import whole_bodies
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.reconcile.runs.sql_outcome import Overtaken, write_outcome

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

DAY = timedelta(days=1)
FIRST_DAY = NOW - 2 * DAY
SETTLED = 30
GROUP = "payments"


def test_what_an_older_release_carried_is_read_with_what_it_did_not_know(
    spark: SparkSession,
) -> None:
    """Given events without digests as an older release carried them, and one of this release, then
    they have the same shape, and the digests of the older one are not known."""
    known = event(RECORD, message_id(1), queue_offset=7, crc=5, digest_1=1, digest_2=2)
    rows = event_rows(pa.RecordBatch.from_pylist([known], EVENTS))
    (new,) = rows.column("body").to_pylist()
    old = new[: -len(PADDING)]

    frame = spark.createDataFrame([(bytearray(each),) for each in (old, new)], "body binary")
    bodies = pa.array([bytes(row.body) for row in whole_bodies(frame).collect()], pa.binary())

    told = bodies_of(bodies)
    assert told["queue_offset"].tolist() == [7, 7]
    assert told["crc"].tolist() == [5, 5]
    assert told["digest_1"].tolist() == [NONE[8], 1]
    assert told["digest_2"].tolist() == [NONE[8], 2]


class Days:
    """Ledgers that grow day by day; each day is reconciled two hours after its messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.cases = Cases(f"sqlite:///{folder}/shop.db", folder / "store")
        self.numbers = iter(range(1, 10_000))
        self.url, self.store = self.cases.write()

    def settled(self, day: datetime, count: int = 1) -> list[str]:
        """Let messages be sent, consumed and confirmed."""
        identities = [self.sent(day) for _ in range(count)]
        for identity in identities:
            self.consume(identity, day)
        return identities

    def sent(self, day: datetime) -> str:
        """Let a message be sent that nobody has consumed."""
        identity = message_id(next(self.numbers), day)
        place = self.cases.send(identity, 0, store_time=day)
        self.cases.stub(identity, GROUP, create_date=day, update_date=day, **place)
        self.write()
        return identity

    def consume(self, identity: str, day: datetime) -> None:
        """Let a message be consumed and its stub confirmed."""
        self.cases.tables.log(identity, GROUP, 1, create_date=day, consume_date=day)
        self.write()
        self.change(identity, day, status=1)

    def change(self, identity: str, day: datetime, **columns: Any) -> None:
        """Change a stub."""
        stubs = self.cases.tables.stubs
        engine = create_engine(self.url)
        with engine.begin() as connection:
            chosen = update(stubs).where(stubs.c.message_id == identity)
            connection.execute(chosen.values(update_date=day, **columns))
        engine.dispose()

    def write(self) -> None:
        self.cases.write()

    def run(self, day: datetime, out: str = "out", **more: Any) -> dict[str, Any]:
        options = RunOptions(
            database=self.url,
            store=self.store,
            out=self.folder / out,
            now=day + timedelta(hours=2),
            grace=GRACE,
            **more,
        )
        return reconcile(options)

    def increment(self, day: datetime, **more: Any) -> dict[str, Any]:
        return self.run(day, increment=True, **more)


def test_an_increment_judges_the_day_and_what_was_open(tmp_path: Path) -> None:
    """Given a day that was reconciled, when another one passes in which an open message settles, a
    settled one comes twice, another is voided, and of a third somebody writes a status that we
    never write; then the increment reads only what is new, and its verdicts and those of the day
    before are together those of a run over everything."""
    days = Days(tmp_path)
    settled = days.settled(FIRST_DAY, SETTLED)
    open_one, lost = days.sent(FIRST_DAY), message_id(next(days.numbers), FIRST_DAY)
    place = {"broker_name": "broker-a", "queue_id": 0, "offset": 999, "count": 1}
    days.cases.stub(lost, GROUP, create_date=FIRST_DAY, update_date=FIRST_DAY, **place)
    days.write()

    first = days.increment(FIRST_DAY)
    assert first["increment"]["changed_since"] is None
    assert first["increment"]["carried"] == 2
    union = verdicts_in(tmp_path / "out")

    day = FIRST_DAY + DAY
    days.settled(day, 5)
    days.consume(open_one, day)
    twice, voided, odd = settled[:3]
    days.cases.send(twice, 0, store_time=day)
    days.write()
    days.change(voided, day, status=2)
    days.change(odd, day, status=-1)
    second = days.increment(day)

    assert second["ledgers"]["first_deliveries"] == 6, "of the log only what is new"
    assert second["ledgers"]["stubs"] == 9, "of the tables what changed, and the lost one"
    assert second["increment"]["previous_run_id"] == first["run_id"]
    assert second["increment"]["carried"] == 3
    told = verdicts_in(tmp_path / "out")
    assert told[open_one, GROUP] == Verdict.SETTLED
    assert told[twice, GROUP] == Verdict.SETTLED
    assert told[voided, GROUP] == Verdict.VOIDED_BUT_CONSUMED
    union |= told
    days.run(day, "whole")
    assert union == verdicts_in(tmp_path / "whole")
    findings = rows_of(days.url, finding_table(MetaData(), "rmq_"))
    newest = [row for row in findings if row["run_id"] == second["run_id"]]
    since = {row["message_id"]: row["first_run_id"] for row in newest}
    anew = dict.fromkeys((voided, odd), second["run_id"])
    assert since == {lost: first["run_id"], **anew}
    runs = {row["run_id"]: row for row in rows_of(days.url, run_table(MetaData(), "rmq_"))}
    assert runs[first["run_id"]]["previous_run_id"] == NO_RUN
    assert runs[second["run_id"]]["watermark"] == day + timedelta(hours=2)
    assert runs[second["run_id"]]["state"] == f"file://{tmp_path}/out/run-{second['run_id']}"


def test_increments_that_cannot_go_on_say_so_and_can_begin_anew(tmp_path: Path) -> None:
    """Given an increment, when what it carried is gone, its store or its databases are others, or
    another one went on from it, then one line says so; begun anew, they go on."""
    days = Days(tmp_path)
    days.settled(FIRST_DAY, 2)
    first = days.increment(FIRST_DAY, runs_kept=1)
    day = FIRST_DAY + DAY

    for _ in range(2):
        days.run(FIRST_DAY, runs_kept=1)
    assert (tmp_path / "out" / f"run-{first['run_id']}").exists(), "the next one needs it"

    with pytest.raises(ConfigurationError, match="omit --since and --until"):
        days.increment(day, since=FIRST_DAY)
    with pytest.raises(
        ConfigurationError, match=r"read the databases .*shop.db; now it is .*/x/shop.db"
    ):
        days.increment(day, others=(Days(tmp_path / "x").url,))
    other = Days(tmp_path / "y")
    other.settled(FIRST_DAY)
    days.store = other.store
    with pytest.raises(ConfigurationError, match="it is another store, or an old copy"):
        days.increment(day)
    days.store = str(tmp_path / "store")
    (tmp_path / "out" / f"run-{first['run_id']}" / "carried.parquet").rename(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="carried events of the last increment are not at"):
        days.increment(day)

    anew = days.increment(day, anew=True)
    assert anew["rows"] == 2
    assert anew["increment"]["previous_run_id"] == first["run_id"]
    (row,) = (
        row
        for row in rows_of(days.url, run_table(MetaData(), "rmq_"))
        if row["run_id"] == anew["run_id"]
    )
    with pytest.raises(Overtaken, match="another increment has ended since"):
        write_outcome(days.url, "rmq_", row | {"run_id": "f" * 32}, [], NOW)
    assert days.increment(day)["rows"] == 0


def test_what_the_broker_removed_before_it_was_read_is_not_clean(tmp_path: Path) -> None:
    days = Days(tmp_path)
    days.settled(FIRST_DAY, 2)
    days.increment(FIRST_DAY)
    runs = run_table(MetaData(), "rmq_")
    engine = create_engine(days.url)
    with engine.begin() as connection:
        connection.execute(update(runs).values(log_ends='{"": -10}'))
    engine.dispose()

    summary = days.increment(FIRST_DAY + DAY)

    assert "bytes -10 to 0 were removed before they were read" in summary["whole"].values()
    assert (summary["clean"], summary["exit_code"]) == (False, 2)
