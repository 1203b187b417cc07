"""The table of committed offsets, as brokers write it in files and replies, and as rows. Pure.

Source: Apache RocketMQ `ConsumerOffsetManager`.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from reliable_mq.wire import fastjson

OFFSET_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("broker", "consumer_group", "topic")),
        ("queue_id", pa.int32()),
        *((name, pa.int64()) for name in ("committed_offset", "queue_begin", "queue_end")),
    ]
)
"""One row for each consumer group and queue with a committed offset. `queue_begin` and `queue_end`
are null if the broker has no such queue."""

Progress = dict[tuple[str, str], dict[int, int]]
"""(consumer group, topic) -> queue id -> the offset of the next message."""


def committed_offsets(text: bytes) -> Progress:
    """Return the offsets in the text of a broker's offset table.

    Raises:
        ValueError: when the text is no such table.
    """
    try:
        table: dict[str, Any] = fastjson.loads(text)["offsetTable"]
        return {
            (group, topic): {int(queue): int(offset) for queue, offset in offsets.items()}
            for (topic, _, group), offsets in (
                (key.partition("@"), offsets) for key, offsets in table.items()
            )
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of offsets: {error!r}") from error


def group_names(text: bytes) -> frozenset[str]:
    """Return the consumer groups in the text of a broker's table of groups.

    Raises:
        ValueError: when it is no such table.
    """
    return _names(text, "subscriptionGroupTable", "consumer groups")


def topic_names(text: bytes) -> frozenset[str]:
    """Return the topics in the text of a broker's table of topics.

    Raises:
        ValueError: when it is no such table.
    """
    return _names(text, "topicConfigTable", "topics")


def _names(text: bytes, table: str, what: str) -> frozenset[str]:
    try:
        return frozenset(fastjson.loads(text)[table])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no table of {what}: {error!r}") from error


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
