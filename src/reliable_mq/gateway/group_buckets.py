"""The queue of a message group: the same for all endpoints and clients. Pure.

Source: Guava `Hashing.consistentHash`, which Apache RocketMQ uses for it.
"""

from reliable_mq.wire.java_hash import java_string_hash

_FACTOR, _MASK = 2862933555777941757, 2**64 - 1


def bucket_of(group: str, count: int) -> int:
    """Return which of `count` queues has a message group; as Guava's `Hashing.consistentHash`."""
    state = java_string_hash(group) & _MASK
    candidate = 0
    while True:
        state = (_FACTOR * state + 1) & _MASK
        share = ((state >> 33) + 1) / 2**31
        following = int((candidate + 1) / share)
        if not 0 <= following < count:
            return candidate
        candidate = following
