"""Open exported ledgers, so that a run judges them like databases and stores.

Receives the folder of an export (`spark_export`), on any file system that Spark supports. Returns
its manifest, and the facts that a run needs before it reads.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.spark_brokers import UNNAMED, BrokerLogs
from reliable_mq.reconcile.databases.sql_ranges import IdWindow
from reliable_mq.reconcile.runs.spark_export import ABOUT, PROGRESS, QUEUE_BEGINS, RECORDS, VERSION
from reliable_mq.reconcile.runs.spark_job import Ledgers

_OLDEST = "min_by(store_time, commit_log_offset) FILTER (WHERE store_time IS NOT NULL)"


class ExportManifest(NamedTuple):
    """The manifest of an export.

    Attributes:
        exported: the time of the export.
        removed_until: retention had removed rows before this moment only. None: none.
        managed: the managed topics at that time.
    """

    exported: datetime
    removed_until: datetime | None
    managed: frozenset[str]


def open_export(spark: SparkSession, uri: str) -> ExportManifest:
    """Return the manifest of an export.

    Raises:
        ConfigurationError: when the folder is no complete export, or this release or this job
            cannot read it.
    """
    try:
        (about,) = spark.read.parquet(f"{uri}/{ABOUT}").collect()
    except (AnalysisException, ValueError) as error:
        raise ConfigurationError(
            f"{uri} is not an export of ledgers, or is not complete"
        ) from error
    if about["version"] != VERSION:
        raise ConfigurationError(f"{uri} is an export of layout {about['version']}, not {VERSION}")
    removed_until = about["removed_until"]
    managed = frozenset(about["managed"])
    return ExportManifest(_utc(about["exported"]), removed_until and _utc(removed_until), managed)


def exported_ledgers(spark: SparkSession, uri: str) -> Ledgers:
    """Return an export as the ledgers of a job."""
    progress: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in spark.read.parquet(f"{uri}/{PROGRESS}").collect():
        queues = progress.setdefault((row["broker"], row["consumer_group"], row["topic"]), {})
        queues[row["queue_id"]] = row["offset"]
    begins: dict[tuple[str, str], dict[int, int]] = {}
    for row in spark.read.parquet(f"{uri}/{QUEUE_BEGINS}").collect():
        begins.setdefault((row["broker"], row["topic"]), {})[row["queue_id"]] = row["offset"]
    (about,) = spark.read.parquet(f"{uri}/{ABOUT}").collect()
    stubs = spark.read.parquet(f"{uri}/stubs")
    records = spark.read.parquet(f"{uri}/{RECORDS}")
    of_brokers = records.groupBy("broker").agg(expr("sum(size)"), expr(_OLDEST)).collect()
    logs = BrokerLogs(
        {UNNAMED: uri},
        progress=progress,
        begins=begins,
        brokers=frozenset(about["brokers"]),
        oldest={broker: _utc(oldest) for broker, _, oldest in of_brokers if oldest is not None},
    )
    return Ledgers(
        urls=(),
        prefix="",
        logs=logs,
        window=IdWindow(),
        managed=sorted(row["topic"] for row in stubs.select("topic").distinct().collect()),
        stub_count_max=stubs.count(),
        log_size=sum(size for _, size, _ in of_brokers),
        export=uri,
        skew_seconds=about.asDict().get("skew_seconds") or 0.0,
    )


def _utc(moment: datetime) -> datetime:
    """Return a time from Spark in UTC. Spark gives local times without a zone."""
    return moment.astimezone(UTC)
