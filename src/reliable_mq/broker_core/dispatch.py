"""Station 7: from the log to the queues. Replaying the log gives what the live run gave.

Receives durable records in log order; hands on consume-queue units; refuses to know who waits for
them. D1: nothing is dispatched before it is durable. D2: a rebuild equals the live run, because
both take what a unit holds from the stored fields, through `queue_tags_code`.
Source: Apache RocketMQ `DefaultMessageStore.ReputMessageService`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import DELAY, TAGS, decode_properties
from reliable_mq.wire.record import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

_TAGS = f"{TAGS}\x01".encode()
_INNER_TAGS = b"\x02" + _TAGS
_SEPARATOR = 0x02
UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def is_queued(sys_flag: int) -> bool:
    """Whether a record gets a consume-queue unit: half messages and rollbacks get none."""
    return sys_flag & TRANSACTION_MASK not in UNQUEUED


def queue_tags_code(
    topic: str, properties: bytes, store_time_ms: int, delays_ms: Mapping[int, int]
) -> int:
    """Return what a unit keeps as tags code: the tag's hash, or when a delayed message is due.

    Args:
        topic: where the record is stored.
        properties: as stored.
        store_time_ms: as stored; the delay counts from it.
        delays_ms: the delay of each level, in milliseconds.
    """
    if topic == SCHEDULE_TOPIC:
        level = decode_properties(properties).get(DELAY, "")
        if level.isdecimal() and int(level) > 0:
            return store_time_ms + delays_ms[min(int(level), max(delays_ms))]
    at = properties.rfind(_INNER_TAGS)  # the last one counts
    begin = at + len(_INNER_TAGS)
    if at < 0:
        if not properties.startswith(_TAGS):
            return 0
        begin = len(_TAGS)
    end = properties.find(_SEPARATOR, begin)
    tag = properties[begin : end if end >= 0 else None]
    # One without a value is none; an earlier one may have some.
    return _code_of(tag) if tag else tags_code(decode_properties(properties).get(TAGS, ""))


def queue_tags_codes(
    topic: str, properties: Sequence[bytes], store_time_ms: int, delays_ms: Mapping[int, int]
) -> list[int]:
    """Return `queue_tags_code` of each message of a batch; often none has a tag."""
    if topic != SCHEDULE_TOPIC and _TAGS not in b"".join(properties):
        return [0] * len(properties)
    return [queue_tags_code(topic, own, store_time_ms, delays_ms) for own in properties]


@lru_cache(maxsize=4096)
def _code_of(tag: bytes) -> int:
    return tags_code(tag.decode("utf-8", "replace"))
