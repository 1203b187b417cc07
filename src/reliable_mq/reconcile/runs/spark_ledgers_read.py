"""Read all ledgers as a DataFrame of events, by the same workers that judge.

To plan a data source, Spark would start two more Python processes, one after the other, with all
their imports. It would also use separate workers for the partitions of a source. This process knows
the ledgers anyway, so it plans them itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS
from reliable_mq.reconcile.runs.spark_ledgers_source import LedgersSource


class LedgersRead:
    """Has the options of `LedgersSource`, and reads the same rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._options: dict[str, str] = {}

    def option(self, name: str, value: str) -> Self:
        """Set an option."""
        self._options[name] = value
        return self

    def load(self) -> DataFrame:
        """Return the events, with one partition for each partition of the ledgers.

        Raises:
            ConfigurationError, StoreError: a ledger cannot be read.
            sqlalchemy.exc.SQLAlchemyError: a database cannot be reached.
        """
        schema = from_arrow_schema(EVENT_ROWS)
        reader = LedgersSource(self._options).reader(schema)
        parts = tuple(reader.partitions())
        numbers = self._spark.range(0, len(parts), 1, max(len(parts), 1))
        return numbers.mapInArrow(_ReadTask(reader, parts), schema)


@dataclass(frozen=True)
class _ReadTask:
    """Reads the partitions with the given numbers. Each task has one number."""

    reader: DataSourceReader
    parts: tuple[InputPartition, ...]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from self.reader.read(self.parts[number])
