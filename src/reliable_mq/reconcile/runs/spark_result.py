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
    """The findings below `folder`, a run's: a file for each task, each sorted by message.

    Invariant: of the rows, about `FINDINGS_AT_ONCE` are in memory at a time.
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
    """Yield the rows of all streams in order; a batch of each stream is in memory at a time.

    Args:
        streams: each is sorted by the first column of `order`, which is never null.
        order: the columns to sort by; in the others a null goes behind every value.

    No row is lost of a stream that is not sorted; it comes out of order then.
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
        # What comes later is behind all that is held of its own stream.
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
