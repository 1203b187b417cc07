"""The verdicts of a run as they lie in its folder; every reader of them begins here."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from reliable_mq.reconcile.runs.run_folder import VERDICTS

FINDINGS = "findings.parquet"
_FINDINGS_AT_ONCE = 50_000
_ORDER = ("message_id", "consumer_group")


class Result:
    """Verdicts that lie in the folder at `uri`.

    Invariant: of the rows, at most `_FINDINGS_AT_ONCE` and a bit are in this process at a time.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri
        self._frame: DataFrame = spark.read.parquet(f"{uri}/{VERDICTS}")
        self._files: list[str] | None = None

    def sort_findings(self, count: int) -> None:
        """Write the findings once more, by themselves and in order; `count`: how many there are."""
        parts = max(1, -(-count // _FINDINGS_AT_ONCE))
        where = f"{self._uri}/{FINDINGS}"
        found = self._frame.where("finding").repartitionByRange(parts, *_ORDER)
        found.sortWithinPartitions(*_ORDER).write.parquet(where)
        self._files = sorted(self._spark.read.parquet(where).inputFiles())

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id.

        By Arrow: its times know that they are UTC, which those that Spark collects do not.
        """
        for file in self._files or ():
            for batch in self._spark.read.parquet(file).toArrow().to_batches():
                yield from batch.to_pylist()
