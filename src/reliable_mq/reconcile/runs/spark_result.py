"""Read the findings of a run whose verdicts Spark wrote, on any file system of Hadoop."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from reliable_mq.reconcile.runs.run_folder import (
    FINDINGS,
    FINDINGS_AT_ONCE,
    FINDINGS_ORDER,
    VERDICTS,
)


class SparkResult:
    """The findings in the folder at `uri`, in files that follow one another in order.

    Invariant: not many more than `FINDINGS_AT_ONCE` rows are in this process at a time.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri
        self._files: list[str] = []

    def sort_findings(self, count: int) -> None:
        """Write the findings to their own files, in order. `count`: their number."""
        parts = max(1, -(-count // FINDINGS_AT_ONCE))
        where = f"{self._uri}/{FINDINGS}"
        found = self._spark.read.parquet(f"{self._uri}/{VERDICTS}").where("finding")
        found = found.repartitionByRange(parts, *FINDINGS_ORDER)
        found.sortWithinPartitions(*FINDINGS_ORDER).write.parquet(where)
        self._files = sorted(self._spark.read.parquet(where).inputFiles())

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id.

        They are read by Arrow, whose times are in UTC; times that Spark collects have no zone.
        """
        for file in self._files:
            for batch in self._spark.read.parquet(file).toArrow().to_batches():
                yield from batch.to_pylist()
