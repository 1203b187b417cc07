"""Station 7, dispatch: from log records to consume-queue units. A replay equals the live run.

Receives durable records in log order. Returns consume-queue units. Does not know waiting pulls.
D1: nothing is dispatched before it is durable. D2: a rebuild equals the live run, because both
compute a unit only from stored fields, through `queue_tags_code`.
Source: Apache RocketMQ `DefaultMessageStore.ReputMessageService`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import DELAY, TAGS, decode_properties
from reliable_mq.wire.record import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

TAGS_NAME = f"{TAGS}\x01".encode()  # stands in all properties with a tag
_INNER_TAGS = b"\x02" + TAGS_NAME
_SEPARATOR = 0x02
UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def is_queued(sys_flag: int) -> bool:
    """Whether a record gets a consume-queue unit: half messages and rollbacks get none."""
    return sys_flag & TRANSACTION_MASK not in UNQUEUED


def queue_tags_code(
    topic: str, properties: bytes, store_time_ms: int, delays_ms: Mapping[int, int]
) -> int:
    """Return the tags code of a unit: the tag's hash, or the due time of a delayed message.

    Args:
        topic: the topic under which the record is stored.
        properties: the stored properties.
        store_time_ms: the store time; a delay counts from here.
        delays_ms: the delay of each level, in milliseconds.
    """
    if topic == SCHEDULE_TOPIC:
        level = decode_properties(properties).get(DELAY, "")
        if level.isdecimal() and int(level) > 0:
            return store_time_ms + delays_ms[min(int(level), max(delays_ms))]
    at = properties.rfind(_INNER_TAGS)  # the last one counts
    begin = at + len(_INNER_TAGS)
    if at < 0:
        if not properties.startswith(TAGS_NAME):
            return 0
        begin = len(TAGS_NAME)
    end = properties.find(_SEPARATOR, begin)
    tag = properties[begin : end if end >= 0 else None]
    # An empty last value does not count; an earlier TAGS property may have one.
    return _code_of(tag) if tag else tags_code(decode_properties(properties).get(TAGS, ""))


def queue_tags_codes(
    topic: str, properties: Sequence[bytes], store_time_ms: int, delays_ms: Mapping[int, int]
) -> list[int]:
    """Return `queue_tags_code` of each message of a batch. Fast if no message has a tag."""
    if topic != SCHEDULE_TOPIC and TAGS_NAME not in b"".join(properties):
        return [0] * len(properties)
    return [queue_tags_code(topic, own, store_time_ms, delays_ms) for own in properties]


@lru_cache(maxsize=4096)
def _code_of(tag: bytes) -> int:
    return tags_code(tag.decode("utf-8", "replace"))
