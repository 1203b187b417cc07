"""The findings of a run whose verdicts Spark wrote, on any file system that its Hadoop knows."""

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
    """Findings that lie in the folder at `uri`, as files each of which is behind the one before.

    Invariant: of the rows, at most `FINDINGS_AT_ONCE` and a bit are in this process at a time.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri
        self._files: list[str] = []

    def sort_findings(self, count: int) -> None:
        """Write the findings once more, by themselves and in order; `count`: how many there are."""
        parts = max(1, -(-count // FINDINGS_AT_ONCE))
        where = f"{self._uri}/{FINDINGS}"
        found = self._spark.read.parquet(f"{self._uri}/{VERDICTS}").where("finding")
        found = found.repartitionByRange(parts, *FINDINGS_ORDER)
        found.sortWithinPartitions(*FINDINGS_ORDER).write.parquet(where)
        self._files = sorted(self._spark.read.parquet(where).inputFiles())

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id.

        By Arrow: its times know that they are UTC, which those that Spark collects do not.
        """
        for file in self._files:
            for batch in self._spark.read.parquet(file).toArrow().to_batches():
                yield from batch.to_pylist()
