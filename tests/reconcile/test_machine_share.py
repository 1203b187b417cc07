"""How much of a machine a run takes."""

from pathlib import Path

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.runs import spark_machine
from reliable_mq.reconcile.runs.machine_share import (
    MachineShare,
    parse_memory,
    partitions_for,
    share_of,
)
from reliable_mq.reconcile.runs.spark_causes import cause

GIB = 1024**3
WORKER_MIB, BESIDE_MIB = 512, 768


def test_two_cores_fit_four_gigabytes() -> None:
    share = share_of(64 * GIB, 2, 4 * GIB)

    assert share == MachineShare(cores=2, heap_mib=2048)
    assert share.heap_mib + share.cores * WORKER_MIB + BESIDE_MIB <= 4096


@pytest.mark.parametrize("gib", [2, 3, 4, 6, 8, 16, 64])
@pytest.mark.parametrize("cpus", [1, 2, 4, 16, 64])
def test_a_run_never_takes_more_than_the_machine_can_spare(gib: int, cpus: int) -> None:
    cores, heap = share_of(gib * GIB, cpus)

    assert 1 <= cores <= cpus
    assert heap >= 512
    assert heap + cores * WORKER_MIB + min(BESIDE_MIB, 512) <= gib * 1024 * 0.8


def test_more_cores_are_used_where_there_is_memory_for_them() -> None:
    assert [share_of(gib * GIB, 16).cores for gib in (3, 8, 64)] == [1, 4, 16]


def test_too_little_memory_is_refused_and_says_who_gives_it() -> None:
    with pytest.raises(ConfigurationError, match=r"needs 1536 MiB.*this machine can spare 819 MiB"):
        share_of(GIB, 2)
    with pytest.raises(ConfigurationError, match=r"--memory gives 1000 MiB"):
        share_of(64 * GIB, 2, parse_memory("1000m", "--memory"))


@pytest.mark.parametrize(
    ("text", "size"), [("4g", 4 * GIB), ("1500m", 1500 * 1024**2), ("2 GiB", 2 * GIB)]
)
def test_a_size_is_written_as_sparks_are(text: str, size: int) -> None:
    assert parse_memory(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "4", "four", "-1g", "4t"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--memory takes a size like 4g"):
        parse_memory(text, "--memory")


def test_a_containers_limits_count_and_those_of_the_groups_around_it(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    inner = tmp_path / "sys/fs/cgroup/outer/inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text(f"{512 * 1024**2}\n")
    (inner / "cpu.max").write_text("100000 100000\n")

    assert spark_machine.memory_bytes(tmp_path) == 512 * 1024**2
    assert spark_machine.processors(tmp_path) == 1


def test_without_control_groups_it_is_the_machine_that_counts(tmp_path: Path) -> None:
    assert spark_machine.memory_bytes(tmp_path) > 512 * 1024**2
    assert spark_machine.processors(tmp_path) >= 1


def test_partitions_are_small_enough_for_a_worker_and_at_least_one_for_each() -> None:
    assert partitions_for(0, 2) == 2
    assert partitions_for(10 * GIB, 2) == 80


OUT_OF_MEMORY = """\
An error occurred while calling o87.parquet.
: java.util.concurrent.ExecutionException: boxed
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat x.y(Z.java:1)"""
FULL = "Job aborted due to stage failure\njava.io.IOException: No space left on device"
KILLED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): -9"
LATE = "org.apache.spark.SparkException: Python worker failed to connect back."
GONE = """\
An error occurred while calling o5.save.
: org.apache.spark.SparkException: outer
Caused by: reliable_mq.errors.StoreError: the segment is gone
"""
REFUSED_BY_A_DATABASE = """\
An error occurred while calling o5.save.
: org.apache.spark.SparkException: outer
Caused by: psycopg.OperationalError: connection to server at "db1", port 5432 failed: refused
"""
REFUSED_BY_A_NAMENODE = """\
An error occurred while calling o27.mkdirs.
: java.net.ConnectException: Call From here to files:9000 failed on connection exception
\tat x.y(Z.java:1)
Caused by: java.net.ConnectException: Connection refused
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[Errno 111] Connection refused", "Spark's Java ended, prob"),
        ("An error occurred while trying to connect to the Java server (::1:5)", "Spark's Java en"),
        (REFUSED_BY_A_DATABASE, 'Spark: connection to server at "db1", port 5432 failed'),
        (REFUSED_BY_A_NAMENODE, "Spark: Call From here to files:9000 failed on connection"),
        (OUT_OF_MEMORY, "Spark ran out of memory: give it more"),
        ("numpy.core: cannot allocate memory in static TLS block", "Spark ran out of memory: give"),
        ("libarrow.so: failed to map segment from shared object", "Spark ran out of memory: give"),
        (FULL, "no space left on device: the disk of --out"),
        (KILLED, "a worker of Spark was killed"),
        (LATE, "a worker of Spark did not start within ten seconds"),
        (GONE, "Spark: the segment is gone"),
    ],
)
def test_what_ended_spark_is_one_line_that_says_what_to_do(text: str, says: str) -> None:
    assert cause(text).startswith(says)
    assert "\n" not in cause(text)
