"""The Spark session of a reconciliation: on one machine, or on a cluster by `spark-submit`.

The user's settings (`spark-submit --conf`, spark-defaults.conf) always take precedence.
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

from reliable_mq.reconcile.runs import spark_installed  # noqa: F401 - names the extra

# isort: split

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

# Only this file can suppress the lines that Spark prints at its start. The root level stays at
# warn, because Spark would print a line when it changes it. The filter suppresses the output.
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
    # A message has few copies and logs, so the lists of a group can stay in the hash table.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # With Spark's old INT96, times would lose their zone (UTC).
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.catalogImplementation": "in-memory",
}
# For a few hundred thousand rows, the optimizing compiler costs more than it saves. Adaptive
# planning is slower than one plan, too.
_SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The same holds for the compilation of expressions.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TRIES_OF_A_TASK = 2  # a worker that was killed because memory was short may succeed again


@contextmanager
def session(*, is_small: bool, memory_bytes: int | None = None) -> Iterator[SparkSession]:
    """Open the Spark session of this process, with the ledgers' sources registered.

    An active session is used and stays open. A session that is started here is stopped at the end.

    Args:
        is_small: whether the data are so few that Spark's start costs more than the work.
        memory_bytes: memory for a run on this machine. None: see `machine_share`.

    Raises:
        ConfigurationError: when this machine has too little memory for Spark.
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
            ):  # Java may have ended before; that error was reported already
                spark.stop()


def _begin(scratch: Path, is_small: bool, memory_bytes: int | None) -> SparkSession:
    # The warning is about pandas, which is not used here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    if not _UNDER_SUBMIT:
        # Java starts this interpreter for data sources, with the environment of Java's start.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        _start_java(scratch, is_small, memory_bytes)
    else:
        SparkContext._ensure_initialized()  # otherwise its settings are unknown, and ours win
    conf = SparkConf()
    settings = _SETTINGS | (_SMALL if is_small else {})
    if (conf.get("spark.master") or "local").startswith("local"):
        # Only for a local master: on a cluster, other machines cannot use these paths.
        settings |= _LOOPBACK | {"spark.local.dir": str(scratch)}
        settings |= {"spark.sql.warehouse.dir": str(scratch / "warehouse")}
        # Spark's workers must use the interpreter and the packages of this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    builder = SparkSession.builder.config(conf=conf).appName("reliable_mq reconcile")
    with _interrupt_kept():
        spark = builder.getOrCreate()
    # We report the end of a run in one line, so suppress Java's long traces.
    spark.sparkContext.setLogLevel("ERROR" if _UNDER_SUBMIT else "FATAL")
    register(spark)
    return spark


@contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Keep this process's handler of Ctrl-C.

    Spark's handler would call Java over the connection that it has just interrupted.
    """
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


_UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT" in os.environ  # Java started this process


def _start_java(scratch: Path, is_small: bool, memory_bytes: int | None) -> None:
    """Start Spark's Java with the settings that cannot be made later.

    Settings in spark-defaults.conf take precedence over ours.
    """
    share = share_of(spark_machine.memory_bytes(), spark_machine.processors(), memory_bytes)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_QUIET_LOG4J)
    settings = {
        "spark.master": f"local[{share.cores},{_TRIES_OF_A_TASK}]",
        "spark.driver.memory": f"{share.heap_mib}m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j}",
        "spark.ui.showConsoleProgress": "false",  # Java is started as a shell, which shows it
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
    """Register the ledgers' sources in a session under their short names.

    The option `pushFilters` of the sources needs the setting below. Without the option they get no
    filters.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LogSource)
    spark.dataSource.register(LedgersSource)
    spark.dataSource.register(TableSource)
    spark.dataSource.register(TopicSource)
