"""The body of the answer to a pop: stored records, and their handles.

A message from a retry topic gets its handle as a property, because the answer names it as one of
the topic itself. No other message has one. Source: Apache RocketMQ `PopMessageProcessor`.
"""

import struct
from collections.abc import Iterator, Sequence

from reliable_mq.wire.pop_handle import PopHandle
from reliable_mq.wire.popped_record import with_handle

_SIZE_AND_NUMBER = struct.Struct(">i16xq")


def places_in(body: bytes) -> tuple[list[int], list[int]]:
    """Return the sizes and the queue offsets of the records in a body."""
    sizes: list[int] = []
    offsets: list[int] = []
    at, end = 0, len(body)
    while at < end:
        size, offset = _SIZE_AND_NUMBER.unpack_from(body, at)
        sizes.append(size)
        offsets.append(offset)
        at += size
    return sizes, offsets


def with_handles(
    body: bytes, sizes: Sequence[int], offsets: Sequence[int], topic: str, handle: PopHandle
) -> bytes:
    """Return records as messages of a topic, each with its handle.

    Args:
        body: the records.
        sizes: of the records.
        offsets: in the queue.
        topic: the one that the consumer asked for.
        handle: of all of them, without an offset.
    """
    records = zip(_records(body, sizes), offsets, strict=True)
    return b"".join(
        with_handle(record, topic, handle._replace(offset=offset).text())
        for record, offset in records
    )


def without_handles(body: bytes, sizes: Sequence[int], topic: str) -> bytes:
    """Return records without the handles that producers have written.

    Sends lose them; but another broker may have stored such a message.
    """
    return b"".join(with_handle(record, topic, "") for record in _records(body, sizes))


def _records(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield body[at : at + size]
        at += size
