"""What Spark notes of its tasks (`spark.eventLog`): how large partitions are, what takes long."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPARK_SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
_MIB = 1024 * 1024
_DATA_SIZE = "data size"  # what an exchange writes, before it is compressed


def largest_partition(folder: Path) -> dict[str, Any]:
    """Return the largest partition that a task read from a shuffle.

    Spark notes the compressed bytes of what a task reads. Its rows are known, and the rows and
    uncompressed bytes of what all tasks wrote: `partition_mib` is the rows at their mean size.
    """
    rows_read = rows_written = bytes_written = 0
    compressed = spilled = tasks = 0
    for task, metrics in _tasks(folder):
        tasks += 1
        read = metrics["Shuffle Read Metrics"]
        rows_read = max(rows_read, read["Total Records Read"])
        compressed = max(compressed, read["Local Bytes Read"] + read["Remote Bytes Read"])
        spilled += metrics["Memory Bytes Spilled"]
        written = metrics["Shuffle Write Metrics"]["Shuffle Records Written"]
        if written:
            rows_written += written
            bytes_written += _accumulated(task["Task Info"], _DATA_SIZE)
    row_size = bytes_written / rows_written if rows_written else 0
    return {
        "tasks": tasks,
        "partition_rows": rows_read,
        "partition_mib": round(rows_read * row_size / _MIB, 1),
        "partition_compressed_mib": round(compressed / _MIB, 1),
        "spilled_mib": round(spilled / _MIB, 1),
    }


def stages(folder: Path) -> list[dict[str, Any]]:
    """Return what the tasks of each stage took together, in seconds, Python's part included.

    `java_seconds` is the processor time of Spark's own threads; the rest of `task_seconds` they
    waited, mostly for Python.
    """
    found: dict[int, dict[str, Any]] = defaultdict(
        lambda: {"tasks": 0, "task_seconds": 0.0, "java_seconds": 0.0, "gc_seconds": 0.0}
    )
    for task, metrics in _tasks(folder):
        stage = found[task["Stage ID"]]
        stage["tasks"] += 1
        stage["task_seconds"] += metrics["Executor Run Time"] / 1e3
        stage["java_seconds"] += metrics["Executor CPU Time"] / 1e9
        stage["gc_seconds"] += metrics["JVM GC Time"] / 1e3
    return [
        {"stage": number} | {name: round(value, 2) for name, value in found[number].items()}
        for number in sorted(found)
    ]


def _tasks(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                yield event, event["Task Metrics"]


def _accumulated(task: dict[str, Any], name: str) -> int:
    return sum(
        int(each["Update"])
        for each in task["Accumulables"]
        if each.get("Name") == name and "Update" in each
    )
