"""Committed offsets as Arrow rows. Pure."""

from collections.abc import Mapping

import pyarrow as pa

from reliable_mq.reconcile.brokers.offset_table import Progress

OFFSET_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("broker", "consumer_group", "topic")),
        ("queue_id", pa.int32()),
        *((name, pa.int64()) for name in ("committed_offset", "queue_begin", "queue_end")),
    ]
)
"""One row for each consumer group and queue with a committed offset. `queue_begin` and `queue_end`
are null if the broker has no such queue."""


def offset_batch(
    broker: str | None, progress: Progress, queues: Mapping[tuple[str, int], tuple[int, int]]
) -> pa.RecordBatch:
    """Return rows of `OFFSET_SCHEMA`.

    Args:
        broker: its name. None: unknown.
        progress: the committed offsets.
        queues: (topic, queue id) -> (first offset, end).
    """
    rows = []
    for (group, topic), offsets in sorted(progress.items()):
        for queue_id, offset in sorted(offsets.items()):
            begin, end = queues.get((topic, queue_id), (None, None))
            values = (broker, group, topic, queue_id, offset, begin, end)
            rows.append(dict(zip(OFFSET_SCHEMA.names, values, strict=True)))
    return pa.RecordBatch.from_pylist(rows, schema=OFFSET_SCHEMA)
