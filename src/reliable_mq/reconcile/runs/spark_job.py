"""The job: all ledgers as events, one shuffle by message, one verdict per message and group.

Receives a session and where the ledgers are; hands on the files of verdicts and what was counted.
The judgement itself is `judge`, a pure function; Spark brings together what belongs together.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from reliable_mq.reconcile.brokers.spark_brokers import BrokerLogs, cluster_option
from reliable_mq.reconcile.databases import sql_ledger
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, FIXED, PADDING
from reliable_mq.reconcile.judgement.increments import Increment
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.machine_share import partitions_for
from reliable_mq.reconcile.runs.run_folder import CARRIED, FINDINGS
from reliable_mq.reconcile.runs.spark_exported_events import exported_events
from reliable_mq.reconcile.runs.spark_judge import (
    CARRIED_ROWS,
    FILES,
    ROWS,
    FileTask,
    JudgementContext,
    RowTask,
    hidden_name,
    rows_in,
)
from reliable_mq.reconcile.runs.spark_ledgers_read import LedgersRead

MOVING_SECONDS_MIN = 5.0
"""For how long rows may change while a run reads one ledger after the other."""
_CLOCK_MARGIN_SECONDS = 1.0
_FILES = "file://"
_EVENT_SIZE = 160  # bytes of an event between the shuffle's two sides
_RECORD_SIZE_MIN = 300  # bytes of a message with next to no body


@dataclass(frozen=True)
class Ledgers:
    """Where the ledgers are, and what was read of them beforehand because it is small.

    `logs`: the brokers' logs, and what their queues and groups say. `managed`: the topics for which
    a stub was ever written. `told_groups`: see `sql_ledger.told_groups`. `stub_count_max` and
    `log_size` say how much there is. `export` is the folder of an export, which is read in place of
    databases and logs. `skew_seconds`: see `database_clocks`.

    Of an increment: what it reads of the tables, of each broker's log, and where the events lie
    that the run before it carried; None: it is the first one.
    """

    urls: Sequence[str]
    prefix: str
    logs: BrokerLogs
    window: sql_ledger.IdWindow
    managed: Sequence[str]
    told_groups: Sequence[str] = ()
    stub_count_max: int = 0
    db_share: float = 1.0
    log_size: int = 0
    export: str | None = None
    skew_seconds: float = 0.0
    increment: Increment | None = None
    log_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    carried: str | None = None


@dataclass(frozen=True)
class JudgementTime:
    """When the ledgers were read, and what is too young to be judged.

    `skew_seconds`: how far the clock of a database or broker is from that of `as_of`. With `grace`
    0 everything has stopped, and no clock matters.
    """

    as_of: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None
    skew_seconds: float = 0.0

    @property
    def slack(self) -> timedelta:
        """By how much the clocks of who wrote the ledgers may differ from that of `as_of`."""
        return min(self.grace, timedelta(seconds=self.skew_seconds))

    @property
    def moving_since(self) -> datetime:
        """What changed at or after this moment may have changed between two ledgers' reading."""
        seconds = max(MOVING_SECONDS_MIN, self.skew_seconds + _CLOCK_MARGIN_SECONDS)
        return self.as_of - min(self.grace, timedelta(seconds=seconds))


def judge_ledgers(spark: SparkSession, ledgers: Ledgers, moment: JudgementTime, uri: str) -> Tally:
    """Write the verdicts on the union of the ledgers as Parquet files; return what was counted.

    Args:
        uri: the folder to be made; all workers and this process must reach it. One of files
            (`file://`) the workers write to by themselves, and the findings once more into the
            folder `FINDINGS` beside it; others through Spark. What an increment carries on goes
            into the folder `CARRIED` beside it.
    """
    judging = JudgementContext(
        _world(ledgers, moment),
        tuple(ledgers.urls),
        ledgers.prefix,
        increment=ledgers.increment,
        told_groups=tuple(ledgers.told_groups),
    )
    events = _events(spark, ledgers).repartition(_partitions(spark, ledgers), "id")
    events = events.sortWithinPartitions("id")
    if uri.startswith(_FILES):
        return _write_files(events, judging, Path(uri.removeprefix(_FILES)))
    return _write_rows(events, judging, uri)


def _write_files(events: DataFrame, judging: JudgementContext, folder: Path) -> Tally:
    folders = [folder, folder.parent / FINDINGS]
    if judging.increment is not None:
        folders.append(folder.parent / CARRIED)
    for each in folders:
        each.mkdir(parents=True)
    task = FileTask(judging, *map(str, folders))
    tally = Tally()
    files = set()
    for file, counted in events.mapInArrow(task, from_arrow_schema(FILES)).collect():
        tally.add_json(counted)
        files.add(file)
    for each in folders:
        for file in files:
            (each / hidden_name(file)).rename(each / file)
        for path in each.iterdir():  # what attempts left that came to nothing
            if path.name not in files:
                path.unlink()
    return tally


def _write_rows(events: DataFrame, judging: JudgementContext, uri: str) -> Tally:
    judged = events.mapInArrow(RowTask(judging), from_arrow_schema(ROWS))
    judged = judged.persist(StorageLevel.DISK_ONLY)  # judged once, read twice
    are_verdicts = judged.where(f"tally IS NULL AND {CARRIED_ROWS} IS NULL")
    are_verdicts.drop("tally", CARRIED_ROWS).write.parquet(uri)
    if judging.increment is not None:
        streams = judged.where(f"{CARRIED_ROWS} IS NOT NULL").select(CARRIED_ROWS)
        rows = streams.mapInArrow(rows_in, from_arrow_schema(EVENT_ROWS))
        rows.write.parquet(f"{uri.rpartition('/')[0]}/{CARRIED}")
    tally = Tally()
    for (counted,) in judged.where("tally IS NOT NULL").select("tally").collect():
        tally.add_json(counted)
    judged.unpersist()
    return tally


def _events(spark: SparkSession, ledgers: Ledgers) -> DataFrame:
    if ledgers.export is not None:
        return exported_events(spark, ledgers.export)
    logs = ledgers.logs
    reader = LedgersRead(spark).option("stores", json.dumps(dict(logs.stores)))
    cluster = cluster_option(logs)
    if cluster is not None:
        reader = reader.option("cluster", cluster)
    reader = reader.option("urls", json.dumps(list(ledgers.urls)))
    reader = reader.option("toldGroups", json.dumps(list(ledgers.told_groups)))
    reader = reader.option("prefix", ledgers.prefix).option("share", str(ledgers.db_share))
    if ledgers.window.low is not None:
        reader = reader.option("idFrom", ledgers.window.low)
    if ledgers.window.high is not None:
        reader = reader.option("idTo", ledgers.window.high)
    if ledgers.log_ranges:
        reader = reader.option("logRanges", json.dumps(dict(ledgers.log_ranges)))
    if ledgers.increment is None or ledgers.increment.since is None:
        return reader.load()
    events = reader.option("changedSince", ledgers.increment.since.isoformat()).load()
    schema = from_arrow_schema(EVENT_ROWS)
    return events.union(whole_bodies(spark.read.schema(schema).parquet(str(ledgers.carried))))


def whole_bodies(carried: DataFrame) -> DataFrame:
    """Return rows of `EVENT_ROWS`, those of an older release with the fields that it did not know.

    Args:
        carried: what an increment carried.
    """
    is_older = f"octet_length(body) < {FIXED.itemsize}"
    padded = f"CASE WHEN {is_older} THEN concat(body, X'{PADDING.hex()}') ELSE body END"
    return carried.withColumn("body", expr(padded))


def _partitions(spark: SparkSession, ledgers: Ledgers) -> int:
    """Return in how many partitions the events are brought together."""
    events = 3 * ledgers.stub_count_max + ledgers.log_size // _RECORD_SIZE_MIN
    return partitions_for(events * _EVENT_SIZE, spark.sparkContext.defaultParallelism)


def _world(ledgers: Ledgers, moment: JudgementTime) -> World:
    return World(
        as_of=moment.as_of,
        grace=moment.grace,
        moving_since=moment.moving_since,
        managed=frozenset(ledgers.managed),
        progress=ledgers.logs.progress,
        begins=ledgers.logs.begins,
        oldest=ledgers.logs.oldest,
        brokers=ledgers.logs.brokers,
        missing=frozenset(ledgers.logs.missing),
        since=moment.since,
        until=moment.until,
        slack=moment.slack,
    )
