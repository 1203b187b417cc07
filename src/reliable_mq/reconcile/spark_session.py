"""The Spark session of a reconciliation: small enough for a laptop, and the cluster's on a cluster.

Settings that the caller made (`spark-submit --conf`, spark-defaults.conf) always win.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from reliable_mq.reconcile.spark_ledgers_source import LedgersSource
from reliable_mq.reconcile.spark_log_source import LogSource
from reliable_mq.reconcile.spark_table_source import TableSource

# Spark's start-up lines go to the terminal before any level can be set, except from this file. The
# root stays at warn, or Spark announces that it makes it so; the filter is what silences it.
_QUIET_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.filter.threshold.type = ThresholdFilter
appender.stderr.filter.threshold.level = error
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

_SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A message has a handful of copies and logs; let a group's lists live in the hash table.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # Spark's old INT96 would lose that the times are UTC.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.catalogImplementation": "in-memory",
}
# A few hundred thousand rows are done before the optimizing compiler has paid for itself, and one
# stage after the other is quicker planned once than adapted.
_SMALL = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Nor has compiling the expressions themselves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextmanager
def session(*, is_small: bool) -> Iterator[SparkSession]:
    """Give the Spark session of this process, with the ledgers' sources registered.

    Args:
        is_small: whether the data are so few that starting costs more than working.

    A session that runs already is used and left running; one that is begun here is stopped.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="reliable-mq-spark-") as scratch:
        spark = _begin(Path(scratch), is_small)
        try:
            yield spark
        finally:
            spark.stop()


def _begin(scratch: Path, is_small: bool) -> SparkSession:
    # It speaks of a pandas that nothing here uses.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # Spark's workers must run the interpreter, and see the packages, of this process.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_QUIET_LOG4J)
    conf = SparkConf()
    for name, value in (_SETTINGS | (_SMALL if is_small else {})).items():
        conf.setIfMissing(name, value)
    if (conf.get("spark.master") or "").startswith("local"):
        for name, value in _LOOPBACK.items():
            conf.setIfMissing(name, value)
    conf.setIfMissing("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    conf.setIfMissing("spark.local.dir", str(scratch))
    conf.setIfMissing("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j}")
    spark = SparkSession.builder.config(conf=conf).appName("reliable_mq reconcile").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the ledgers' sources known to a session under their short names."""
    spark.dataSource.register(LogSource)
    spark.dataSource.register(LedgersSource)
    spark.dataSource.register(TableSource)
