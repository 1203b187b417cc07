"""The findings of a run, sorted by message: of files that this process can read, or by Spark.

Receives the folder of a run; hands on its findings, of which few are in memory at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import SparkSession

from reliable_mq.reconcile.runs.run_folder import (
    FINDINGS,
    FINDINGS_AT_ONCE,
    FINDINGS_ORDER,
    VERDICTS,
)


class FileResult:
    """The findings in the folder of a run: one file for each task, each sorted by message.

    Invariant: about `FINDINGS_AT_ONCE` rows are in memory at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._files = sorted((folder / FINDINGS).glob("*.parquet"))

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id."""
        at_once = max(1, FINDINGS_AT_ONCE // max(1, len(self._files)))
        streams = [parquet.ParquetFile(file).iter_batches(at_once) for file in self._files]
        for table in merged(streams, FINDINGS_ORDER):
            yield from table.to_pylist()


def merged(streams: Sequence[Iterable[pa.RecordBatch]], order: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of all streams in order. One batch of each stream is in memory at a time.

    If a stream is not sorted, its rows come out of order, but none is lost.

    Args:
        streams: each is sorted by the first column of `order`, which is never null.
        order: the columns to sort by. In columns after the first, null is after every value.
    """
    waiting = [(batch for batch in stream if batch.num_rows) for stream in streams]
    held: list[pa.Table | None] = [None] * len(waiting)
    while True:
        for place, stream in enumerate(waiting):
            if held[place] is None and (batch := next(stream, None)) is not None:
                held[place] = pa.Table.from_batches([batch])
        rows = [table for table in held if table is not None]
        if not rows:
            return
        # Later batches of a stream are not before the rows of it that are held.
        bound = min(pc.max(table[order[0]]).as_py() for table in rows)
        ready = []
        for place, table in enumerate(held):
            if table is not None:
                is_ready = pc.less_equal(table[order[0]], bound)
                ready.append(table.filter(is_ready))
                rest = table.filter(pc.invert(is_ready))
                held[place] = rest if rest.num_rows else None
        found = pa.concat_tables(ready)
        yield found.sort_by([(name, "ascending") for name in order])


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
