"""A broker's commit log as a Spark stream: each batch has the records since the last batch.

The offset of the stream is the log offset up to which the consume queues list records. All records
before it are complete. A batch is the range between two such offsets, so it is the same each time
it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from reliable_mq.errors import StoreError
from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.log_schema import with_broker, without_broker

_END = "log_offset"


class LogStream(DataSourceStreamReader):
    """Reads ranges of a commit log in Spark's workers.

    Args:
        path: the store directory of a running broker.
        split_size: approximate bytes of the log in a partition.
        schema: the wanted columns, from `STORED_SCHEMA`.
        check_body: whether `content_crc` is computed. Otherwise it is null.
        broker: the value of the column `broker`. None: null.
        from_begin: whether a new stream starts at the beginning of the log, not at its end.
        fails_on_loss: whether to fail if the broker removed records before they were read.
    """

    def __init__(
        self,
        path: str,
        split_size: int,
        schema: pa.Schema,
        *,
        check_body: bool,
        broker: str | None,
        from_begin: bool,
        fails_on_loss: bool,
    ) -> None:
        self._path, self._split_size = path, split_size
        self._schema, self._check_body, self._broker = schema, check_body, broker
        self._from_begin, self._fails_on_loss = from_begin, fails_on_loss

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset at which a new stream starts."""
        layout = file_store.read_layout(self._path, self._split_size)
        return {_END: layout.log_begin if self._from_begin else layout.sure_end}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802, ARG002 - Spark's name
        """Return the known end of the log, never less than `start` (Spark 4.1 gives no `start`)."""
        end = file_store.read_layout(self._path, self._split_size).sure_end
        return {_END: max(end, start[_END] if start else 0)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions between two offsets.

        Raises:
            StoreError: when the broker has removed a part of this range, unless that is allowed.
        """
        layout = file_store.read_layout(self._path, self._split_size)
        begin, stop = start[_END], end[_END]
        if begin < layout.log_begin and self._fails_on_loss:
            raise StoreError(
                f"the log of {self._path} begins at {layout.log_begin} now: bytes from {begin}"
                " on were removed before they were read; failOnDataLoss=false skips them"
            )
        return [
            InputPartition(
                replace(
                    part,
                    start=max(part.start, begin),
                    stop=min(part.stop, stop),
                    sure_end=min(part.sure_end, stop),
                )
            )
            for part in layout.partitions
            if part.start < stop and part.stop > begin
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition."""
        if partition.value is None:
            return
        batches = file_store.read_batches(
            partition.value, without_broker(self._schema), check_body=self._check_body
        )
        for batch in batches:
            yield with_broker(batch, self._schema, self._broker)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: Spark's checkpoint stores the progress of a stream."""
