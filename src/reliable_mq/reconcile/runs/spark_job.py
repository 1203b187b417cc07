"""The Spark job: read all ledgers as events, shuffle once by message, and write the verdicts.

Receives a session and the locations of the ledgers. Writes files of verdicts, and returns the
counts. `judge`, a pure function, makes the verdicts; Spark brings the events of a message together.
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
"""Rows that changed within so many seconds may have changed between the reads of two ledgers."""
_CLOCK_MARGIN_SECONDS = 1.0
_FILES = "file://"
_EVENT_SIZE = 160  # bytes of an event between the shuffle's two sides
_RECORD_SIZE_MIN = 300  # bytes of a message with next to no body


@dataclass(frozen=True)
class Ledgers:
    """The locations of the ledgers, and the small facts that are read before the job.

    Attributes:
        urls: the URLs of the databases.
        prefix: the prefix of the table names.
        logs: the brokers' logs, with their queues and committed offsets.
        window: the message ids to read.
        managed: the topics for which a stub was ever written.
        groups_with_notices: see `sql_ledger.groups_with_notices`.
        stub_count_max: an upper bound for the number of stubs.
        db_share: the part of the time that reads of a database may take.
        log_size: approximate bytes of all logs.
        export: the folder of an export, which is read instead of databases and logs.
        skew_seconds: the largest difference of the ledgers' clocks; see `database_clocks`.
        increment: of an increment: what it reads from the tables. None: this is no increment.
        log_ranges: of an increment: broker -> the log offsets to read.
        carried: of an increment: the URI of the carried events. None: it is the first one.
    """

    urls: Sequence[str] = field(repr=False)
    prefix: str
    logs: BrokerLogs
    window: sql_ledger.IdWindow
    managed: Sequence[str]
    groups_with_notices: Sequence[str] = ()
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
    """The moment of the judgement, and which messages are too young for it.

    `skew_seconds`: the largest difference between the clock of a database or broker and the clock
    of `as_of`. With `grace` 0 all processes have stopped, and the difference does not matter.
    """

    as_of: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None
    skew_seconds: float = 0.0

    @property
    def slack(self) -> timedelta:
        """The possible difference between the ledgers' clocks and the clock of `as_of`."""
        return min(self.grace, timedelta(seconds=self.skew_seconds))

    @property
    def moving_since(self) -> datetime:
        """Rows that changed since this moment may have changed between the reads of two ledgers."""
        seconds = max(MOVING_SECONDS_MIN, self.skew_seconds + _CLOCK_MARGIN_SECONDS)
        return self.as_of - min(self.grace, timedelta(seconds=seconds))


def judge_ledgers(spark: SparkSession, ledgers: Ledgers, moment: JudgementTime, uri: str) -> Tally:
    """Write the verdicts on the union of the ledgers as Parquet files; return the counts.

    Args:
        uri: the folder to create. All workers and this process must be able to access it. With
            `file://` the workers write the files themselves, and write the findings again to the
            folder `FINDINGS` beside it. With other schemes Spark writes. The carried events of an
            increment go to the folder `CARRIED` beside it.
    """
    judging = JudgementContext(
        _world(ledgers, moment),
        tuple(ledgers.urls),
        ledgers.prefix,
        increment=ledgers.increment,
        groups_with_notices=tuple(ledgers.groups_with_notices),
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
        for path in each.iterdir():  # files of failed or repeated tasks
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
    reader = reader.option("toldGroups", json.dumps(list(ledgers.groups_with_notices)))
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
    """Return carried rows (`EVENT_ROWS`). Rows of an older release get its missing fields as null.

    Args:
        carried: the carried events of an increment.
    """
    is_older = f"octet_length(body) < {FIXED.itemsize}"
    padded = f"CASE WHEN {is_older} THEN concat(body, X'{PADDING.hex()}') ELSE body END"
    return carried.withColumn("body", expr(padded))


def _partitions(spark: SparkSession, ledgers: Ledgers) -> int:
    """Return the number of partitions for the shuffle of the events."""
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
