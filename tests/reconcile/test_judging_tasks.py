"""Tasks of the judgement as Spark's workers run them: the files that they leave."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset, parquet
from tests.reconcile.judging import event
from tests.reconcile.ledgers import GRACE, NOW, message_id

from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import EVENTS, STUB
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.spark_judge import FileTask, Judging, hidden_name

WORLD = World(NOW, GRACE, NOW - timedelta(seconds=5), frozenset({"orders"}))


def test_verdicts_of_a_task_are_hidden_until_its_run_counts_them(tmp_path: Path) -> None:
    """Given a task that Spark did twice, and that ends when its run is over, then readers of the
    run's folder do not see what it wrote."""
    folders = [tmp_path / name for name in ("verdicts.parquet", "findings.parquet")]
    for each in folders:
        each.mkdir()
    stubs = pa.Table.from_pylist([event(STUB, message_id(1), required="g", tries=3)], EVENTS)
    rows = [event_rows(batch) for batch in stubs.to_batches()]
    task = FileTask(Judging(WORLD, (), "rmq_"), *map(str, folders))

    (counted,) = task(pa.Table.from_batches(rows, EVENT_ROWS).to_batches())

    (name,) = counted["file"].to_pylist()
    for each in folders:
        assert [path.name for path in each.iterdir()] == [hidden_name(name)]
        assert dataset.dataset(each, format="parquet").count_rows() == 0
        (verdict,) = parquet.read_table(each / hidden_name(name))["verdict"].to_pylist()
        assert verdict == "not sent"
