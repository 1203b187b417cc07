"""Selects the queue of a message by its ordering key; the same in every process.

Source of the hash called "java": Apache RocketMQ `SelectMessageQueueByHash`, Java's
`String.hashCode`.
"""

from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from reliable_mq.message import MessageQueue


def queue_of_key(
    ordering_key: str, queues: Sequence[MessageQueue], key_hash: str = "crc32"
) -> MessageQueue:
    """Return the queue of `ordering_key`: the same in every process and every run.

    Args:
        ordering_key: the key.
        queues: the queues of one topic, sorted, at least one.
        key_hash: one of `KEY_HASHES`; all producers of a topic must use the same.
    """
    return queues[KEY_HASHES[key_hash](ordering_key) % len(queues)]


def _crc32(ordering_key: str) -> int:
    return crc32(ordering_key.encode())


def _java(ordering_key: str) -> int:
    """Return the absolute value of the key's hash code in Java."""
    text = ordering_key.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(text), 2):
        value = (31 * value + (text[at] << 8 | text[at + 1])) & 0xFFFFFFFF
    return value if value < 1 << 31 else (1 << 32) - value


KEY_HASHES: Mapping[str, Callable[[str], int]] = {"crc32": _crc32, "java": _java}
"""Hash functions of ordering keys: ours, and the one of Apache's `SelectMessageQueueByHash`."""
