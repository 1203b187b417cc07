"""Tasks of the judgement as Spark's workers run them: what they ask again, what they leave."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset, parquet
from sqlalchemy import MetaData, create_engine, insert
from tests.reconcile.judging import event, verdicts_of
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW, TableWriter, message_id

from reliable_mq.database.sql_scheduling_tables import retention_table
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import CONSUMED, EVENTS, LOG, STUB
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.spark_judge import FileTask, JudgementContext, hidden_name

WORLD = World(NOW, GRACE, NOW - timedelta(seconds=5), frozenset({"orders"}))


def test_what_retention_removes_from_tables_while_they_are_read_is_not_missing(
    tmp_path: Path,
) -> None:
    """Given messages whose stubs went between the opening of the tables and their reading, then
    they are as if they had gone before; what came later and has no stub is an orphan."""
    tables = TableWriter(f"sqlite:///{tmp_path}/shop.db")
    url = tables.write()
    old, young = message_id(1, LONG_AGO), message_id(2, LONG_AGO + timedelta(minutes=9))
    consumed = {"consumer_group": "g", "state": CONSUMED}
    logs = pa.Table.from_pylist([event(LOG, each, **consumed) for each in (old, young)], EVENTS)
    rows = [event_rows(batch) for batch in logs.to_batches()]

    def found() -> dict[str, str]:
        (judged,) = JudgementContext(WORLD, (url,), "rmq_").verdicts(rows, Tally())
        return {identity: verdict for (identity, _), verdict in verdicts_of(judged).items()}

    assert found() == dict.fromkeys((old, young), "orphan")
    duties = retention_table(MetaData(), "rmq_")
    engine = create_engine(url)
    duties.create(engine)
    with engine.begin() as connection:
        mark = LONG_AGO + timedelta(minutes=5)
        marks = {"stubs_removed_until": mark, "logs_removed_until": LONG_AGO}
        connection.execute(insert(duties).values(duty="rows", **marks))
    engine.dispose()

    assert found() == {young: "orphan"}


def test_verdicts_of_a_task_are_hidden_until_its_run_counts_them(tmp_path: Path) -> None:
    """Given a task that Spark did twice, and that ends when its run is over, then readers of the
    run's folder do not see what it wrote."""
    folders = [tmp_path / name for name in ("verdicts.parquet", "findings.parquet")]
    for each in folders:
        each.mkdir()
    stubs = pa.Table.from_pylist([event(STUB, message_id(1), required="g", tries=3)], EVENTS)
    rows = [event_rows(batch) for batch in stubs.to_batches()]
    task = FileTask(JudgementContext(WORLD, (), "rmq_"), *map(str, folders))

    (counted,) = task(pa.Table.from_batches(rows, EVENT_ROWS).to_batches())

    (name,) = counted["file"].to_pylist()
    for each in folders:
        assert [path.name for path in each.iterdir()] == [hidden_name(name)]
        assert dataset.dataset(each, format="parquet").count_rows() == 0
        (verdict,) = parquet.read_table(each / hidden_name(name))["verdict"].to_pylist()
        assert verdict == "not sent"
