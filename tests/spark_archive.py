"""Keeps Spark's classes as Java has them in its memory, so that each start of Spark reads no jars.

`make test` calls it once for an environment: it runs a small job, and lets Java write what it has
loaded to a file. A Java that starts with this file needs half of the processor time for a session.
A Java that cannot use the file, for example of another version, ignores it.
"""

import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory

ARCHIVE = Path(sys.prefix) / "spark.jsa"
JAVA_ARCHIVE = Path(sys.prefix) / "java.jsa"
"""Of the classes of Java itself. The other one names this place."""
_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable that Spark hands to the Java of a session, and says nothing about."""
_QUIET = "-Xlog:disable"
_SECONDS_MAX = 600.0


def use(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let each Spark that is started with `environment` use the archive, if there is one."""
    if ARCHIVE.is_file() and ARCHIVE.stat().st_size:
        environment.setdefault(_OPTIONS, f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}")


def write() -> None:
    """Write the archive; an empty file, if this Java cannot write one, so that none tries again."""
    from reliable_mq.runtime.java_home import use_java

    java = str(use_java() / "bin" / "java")
    # Not every Java comes with an archive of its own classes, on which the other one is based.
    dump = [java, "-Xshare:dump", f"-XX:SharedArchiveFile={JAVA_ARCHIVE}", _QUIET]
    subprocess.run(dump, capture_output=True, timeout=_SECONDS_MAX, check=False)
    own = [f"-XX:SharedArchiveFile={JAVA_ARCHIVE}"] if JAVA_ARCHIVE.exists() else []
    with TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        options = " ".join([*own, f"-XX:ArchiveClassesAtExit={made}", _QUIET])
        words = [sys.executable, "-m", "tests.spark_archive", "job", str(Path(folder) / "rows")]
        environment = {**os.environ, _OPTIONS: options}
        subprocess.run(
            words, env=environment, capture_output=True, timeout=_SECONDS_MAX, check=False
        )
        if not made.exists():
            made.touch()
        made.replace(ARCHIVE)


def job(rows: Path) -> None:
    """Do what most tests do with Spark, and wait until Java has ended and written its classes."""
    from pyspark import SparkContext

    from reliable_mq.reconcile.runs.spark_session import session

    with session(is_small=True) as spark:
        spark.createDataFrame([(1, "a"), (2, "b")], "number int, word string").write.parquet(
            str(rows)
        )
        spark.read.parquet(str(rows)).createOrReplaceTempView("rows")
        spark.sql("SELECT word, count(*), collect_list(number) FROM rows GROUP BY word").toArrow()
        gateway = SparkContext._gateway
        java: subprocess.Popen[bytes] = gateway.proc  # type: ignore[union-attr]
    assert java.stdin is not None
    java.stdin.close()  # at the end of its input it ends in an orderly way
    java.wait(_SECONDS_MAX)


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(Path(sys.argv[2]))
    else:
        write()
