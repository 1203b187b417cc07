"""Station 7: from the log to the queues. Replaying the log gives what the live run gave.

Receives durable records in log order; hands on consume-queue units; refuses to know who waits for
them. D1: nothing is dispatched before it is durable. D2: a rebuild equals the live run, because
both come through `dispatch_entry`.
Source: Apache RocketMQ `DefaultMessageStore.ReputMessageService`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import DELAY, TAGS
from reliable_mq.wire.record import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
)

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class DispatchEntry(NamedTuple):
    """What the queues need to know of one stored record."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    size: int
    tags_code: int
    store_time_ms: int
    is_queued: bool  # whether it gets a consume-queue unit


def dispatch_entry(record: Record, delays_ms: Mapping[int, int]) -> DispatchEntry:
    """Return the entry of a record that was read from the log.

    Args:
        record: as decoded.
        delays_ms: the delay of each level, in milliseconds.
    """
    properties = record.property_map()
    return DispatchEntry(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.commit_log_offset,
        record.size,
        queue_tags_code(record.topic, properties, record.store_time_ms, delays_ms),
        record.store_time_ms,
        record.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK),
    )


def queue_tags_code(
    topic: str, properties: Mapping[str, str], store_time_ms: int, delays_ms: Mapping[int, int]
) -> int:
    """Return what a unit keeps as tags code: the tag's hash, or when a delayed message is due."""
    if topic == SCHEDULE_TOPIC:
        level = min(int(properties.get(DELAY, "1")), max(delays_ms))
        return store_time_ms + delays_ms[level]
    return tags_code(properties.get(TAGS, ""))
