"""Exports that cannot be used, and places for none; `test_corpus` has one that is used."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.reconcile.ledgers import NOW, StoreWriter, TableWriter, message_id

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.log_scan import LogRow
from reliable_mq.reconcile.brokers.log_schema import log_batch
from reliable_mq.reconcile.runs import spark_opening
from reliable_mq.reconcile.runs.spark_export import export_ledgers
from reliable_mq.reconcile.runs.spark_exported_events import exported_record_events
from reliable_mq.reconcile.runs.spark_import import open_export
from reliable_mq.reconcile.runs.spark_opening import (
    export_if_asked,
    of_its_brokers,
    open_exported,
    open_ledgers,
)
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile

NOTHING: dict[str, Any] = {"prefix": "rmq_", "stores": {}, "progress": {}, "now": NOW}


@pytest.mark.spark
def test_a_folder_that_is_no_whole_export_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "stubs").mkdir()

    with pytest.raises(ConfigurationError, match="is not an export of ledgers, or is not complete"):
        open_export(spark, tmp_path.as_uri())


@pytest.mark.spark
def test_an_export_is_not_written_among_other_things(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "stubs").mkdir()

    with pytest.raises(ConfigurationError, match="is not empty; export to a new folder"):
        export_ledgers(spark, tmp_path.as_uri(), urls=[], **NOTHING)


@pytest.mark.spark
def test_an_export_from_before_the_time_that_is_asked_for_is_not_called_clean(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given an export, when the time behind it is to be judged, then one line says so; and its last
    day can be."""
    store = StoreWriter(tmp_path / "store").write()
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    uri = (tmp_path / "export").as_uri()
    export_ledgers(spark, uri, **NOTHING | {"urls": [url], "stores": {"b-1": store}})
    options = RunOptions("", "", tmp_path, NOW + timedelta(days=9), timedelta(0), ledgers=uri)

    with pytest.raises(ConfigurationError, match=f"the export at {uri} ends before it"):
        open_exported(spark, replace(options, since=NOW))

    judged, _ = open_exported(spark, replace(options, since=NOW - timedelta(days=1)))
    assert judged.now == NOW


@pytest.mark.spark
def test_an_export_reads_databases_for_a_part_of_the_time_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given a share that is none, then the table's reader says so: it is what it goes by."""
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()

    with pytest.raises(PySparkException, match="share"):
        export_ledgers(spark, (tmp_path / "export").as_uri(), urls=[url], db_share=7.0, **NOTHING)


def test_an_export_has_the_progress_from_before_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a backlog that is consumed while ledgers are exported, then what was passed meanwhile
    does not count as passed: the exported consume logs do not have it."""
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"body")
    store.commit("payments", "orders", 0, 0)
    path = store.write()
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    options = RunOptions(url, path, tmp_path, NOW, timedelta(0), export="e", broker_name="b-1")
    _, ledgers = of_its_brokers(options, open_ledgers(options))
    asked: dict[str, Any] = {}
    monkeypatch.setattr(spark_opening, "export_ledgers", lambda *_, **more: asked.update(more))

    store.commit("payments", "orders", 0, 1)
    store.write()
    export_if_asked(None, options, ledgers)  # type: ignore[arg-type]

    assert asked["stores"] == {"b-1": path}
    assert asked["progress"] == {("b-1", "payments", "orders"): {0: 0}}
    assert asked["skew_seconds"] == ledgers.skew_seconds


def test_exported_records_are_of_the_broker_that_each_names() -> None:
    rows = [LogRow("first", at, 100, topic="orders", message_id=f"{at:032X}") for at in range(4)]
    batch = log_batch(rows).append_column("broker", pa.array(["a", "b", "a", "b"]))

    events = exported_record_events(batch)

    found = zip(*(events[name].to_pylist() for name in ("broker", "log_offset")), strict=True)
    assert sorted(found) == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"store": "store"}, "--ledgers cannot be used with --db, --store"),
        ({"export": "other"}, "--ledgers cannot be used with --db, --store"),
        ({"repair": "plan"}, "--repair needs the databases: give --db and --store"),
    ],
)
def test_an_export_is_judged_alone(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    options = RunOptions("", "", tmp_path, NOW, timedelta(0), ledgers="export")

    with pytest.raises(ConfigurationError, match=says):
        reconcile(replace(options, **changes))
