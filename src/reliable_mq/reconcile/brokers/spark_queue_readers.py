"""The readers of consume queues and of committed offsets, from a broker's store.

`spark_log_source` uses them for `part=queues` and `part=offsets`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from reliable_mq.reconcile.brokers.file_queues import QueueFiles, queues_of, read_progress
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.offset_rows import offset_batch
from reliable_mq.reconcile.source_filters import Condition, filtered


class ConsumeQueueReader(DataSourceReader):
    """Reads consume queues, one row for each listed message. A partition may have many queues.

    Args:
        path: the store directory.
        split_size: approximate bytes of queue files in a partition.
        schema: the wanted columns, from `file_queues.QUEUE_SCHEMA`.
    """

    def __init__(self, path: str, split_size: int, schema: pa.Schema) -> None:
        self._path, self._split_size, self._schema = path, split_size, schema
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        read_layout(self._path)  # raises if it is no store
        folders: list[list[str]] = []
        room = 0
        for queue in queues_of(Path(self._path)):
            if room <= 0:
                folders.append([])
                room = self._split_size
            folders[-1].append(str(queue.folder))
            room -= queue.size
        return [InputPartition(tuple(each)) for each in folders]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for folder in partition.value or ():
            for batch in QueueFiles(Path(folder)).batches():
                yield filtered(batch.select(self._schema.names), self.conditions)


class OffsetReader(DataSourceReader):
    """Reads the committed offsets of a store, one row for each group and queue.

    Args:
        path: the store directory.
        schema: the wanted columns, from `offset_table.OFFSET_SCHEMA`.
        broker: the value of the column `broker`. None: null.
    """

    def __init__(self, path: str, schema: pa.Schema, broker: str | None) -> None:
        self._path, self._schema, self._broker = path, schema, broker
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        read_layout(self._path)
        return [InputPartition(self._path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        progress = read_progress(partition.value)
        begins = read_layout(partition.value).queue_begins
        queues = {
            (queue.topic, queue.queue_id): (
                begins.get((queue.topic, queue.queue_id), 0),
                queue.bounds()[1],
            )
            for queue in queues_of(Path(partition.value))
        }
        batch = offset_batch(self._broker, progress, queues)
        yield filtered(batch.select(self._schema.names), self.conditions)
