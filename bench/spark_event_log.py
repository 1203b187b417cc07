"""What Spark notes of its tasks (`spark.eventLog`): how large the largest partition was."""

import json
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
    """Return the largest partition that a task read from a shuffle, and the most that one wrote.

    Spark notes the compressed bytes of what a task reads. Its rows are known, and the rows and
    uncompressed bytes of what all tasks wrote: `partition_mib` is the rows at their mean size.
    """
    rows_read = rows_written = bytes_written = 0
    compressed = spilled = tasks = 0
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] != "SparkListenerTaskEnd" or "Task Metrics" not in event:
                continue
            tasks += 1
            metrics = event["Task Metrics"]
            read = metrics["Shuffle Read Metrics"]
            rows_read = max(rows_read, read["Total Records Read"])
            size = read["Local Bytes Read"] + read["Remote Bytes Read"]
            compressed = max(compressed, size)
            spilled += metrics["Memory Bytes Spilled"]
            written = metrics["Shuffle Write Metrics"]["Shuffle Records Written"]
            if written:
                rows_written += written
                bytes_written += _accumulated(event["Task Info"], _DATA_SIZE)
    row_size = bytes_written / rows_written if rows_written else 0
    return {
        "tasks": tasks,
        "partition_rows": rows_read,
        "partition_mib": round(rows_read * row_size / _MIB, 1),
        "partition_compressed_mib": round(compressed / _MIB, 1),
        "spilled_mib": round(spilled / _MIB, 1),
    }


def _accumulated(task: dict[str, Any], name: str) -> int:
    return sum(
        int(each["Update"])
        for each in task["Accumulables"]
        if each.get("Name") == name and "Update" in each
    )
