"""The Spark session of a reconciliation: small enough for a laptop, and the cluster's on a cluster.

Settings that the caller made (`spark-submit --conf`, spark-defaults.conf) always win.
"""

import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from reliable_mq.reconcile.brokers.spark_log_source import LogSource
from reliable_mq.reconcile.brokers.spark_topic_source import TopicSource
from reliable_mq.reconcile.databases.spark_table_source import TableSource
from reliable_mq.reconcile.runs import spark_machine
from reliable_mq.reconcile.runs.machine_share import share_of
from reliable_mq.reconcile.runs.spark_ledgers_source import LedgersSource

# Spark's start-up lines go to the terminal before any level can be set, except from this file. The
# root stays at warn, or Spark announces that it makes it so; the filter is what silences it.
_QUIET_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.filter.threshold.type = ThresholdFilter
appender.stderr.filter.threshold.level = fatal
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

_SETTINGS = {
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
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Nor has compiling the expressions themselves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TRIES_OF_A_TASK = 2  # a worker that the system killed for want of memory may have been unlucky


@contextmanager
def session(*, is_small: bool, memory_bytes: int | None = None) -> Iterator[SparkSession]:
    """Give the Spark session of this process, with the ledgers' sources registered.

    Args:
        is_small: whether the data are so few that starting costs more than working.
        memory_bytes: what a run on this machine may take; None: see `machine_share`.

    A session that runs already is used and left running; one that is begun here is stopped.

    Raises:
        ConfigurationError: when this machine has too little memory to begin with.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="reliable-mq-spark-") as scratch:
        spark = _begin(Path(scratch), is_small, memory_bytes)
        try:
            yield spark
        finally:
            with suppress(
                Py4JError, OSError
            ):  # Java may have ended before us; why, is told already
                spark.stop()


def _begin(scratch: Path, is_small: bool, memory_bytes: int | None) -> SparkSession:
    # It speaks of a pandas that nothing here uses.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    if not _UNDER_SUBMIT:
        # Java asks this interpreter for data sources; its environment is settled at its start.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        _start_java(scratch, is_small, memory_bytes)
    else:
        SparkContext._ensure_initialized()  # else its settings are not seen, and ours win
    conf = SparkConf()
    settings = _SETTINGS | (_SMALL if is_small else {})
    if (conf.get("spark.master") or "local").startswith("local"):
        # On a cluster none of this machine's paths and addresses mean anything to the others.
        settings |= _LOOPBACK | {"spark.local.dir": str(scratch)}
        settings |= {"spark.sql.warehouse.dir": str(scratch / "warehouse")}
        # Spark's workers must run the interpreter, and see the packages, of this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    builder = SparkSession.builder.config(conf=conf).appName("reliable_mq reconcile")
    with _interrupt_kept():
        spark = builder.getOrCreate()
    # What ended a run is told by one line of ours; pages of Java above it help nobody.
    spark.sparkContext.setLogLevel("ERROR" if _UNDER_SUBMIT else "FATAL")
    register(spark)
    return spark


@contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Keep what this process does on Ctrl-C.

    Spark's own handler asks Java over the very connection that it interrupts.
    """
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


_UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT" in os.environ  # Java was there before us


def _start_java(scratch: Path, is_small: bool, memory_bytes: int | None) -> None:
    """Start Spark's Java with what cannot be set later; spark-defaults.conf goes before ours."""
    share = share_of(spark_machine.memory_bytes(), spark_machine.processors(), memory_bytes)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_QUIET_LOG4J)
    settings = {
        "spark.master": f"local[{share.cores},{_TRIES_OF_A_TASK}]",
        "spark.driver.memory": f"{share.heap_mib}m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j}",
        "spark.ui.showConsoleProgress": "false",  # a shell, as which Java is started, shows it
    }
    if is_small:
        settings["spark.driver.defaultJavaOptions"] = _SMALL_JAVA
    conf = SparkConf(loadDefaults=False)
    for name in settings.keys() - _settings_of_the_user():
        conf.set(name, settings[name])
    SparkContext._ensure_initialized(conf=conf)


def _settings_of_the_user() -> set[str]:
    """Return the names of the settings in spark-defaults.conf."""
    folder = os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf"
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] for line in lines if line.strip()}


def register(spark: SparkSession) -> None:
    """Make the ledgers' sources known to a session under their short names.

    Their option `pushFilters` needs the setting; without the option they take no filters.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LogSource)
    spark.dataSource.register(LedgersSource)
    spark.dataSource.register(TableSource)
    spark.dataSource.register(TopicSource)
