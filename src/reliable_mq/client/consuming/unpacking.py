"""Decompresses the bodies of stored records that the producer compressed.

Source: Apache RocketMQ `MessageDecoder`, `MessageSysFlag`.
"""

from collections.abc import Sequence
from functools import partial

from reliable_mq.client.flow import Flow, work
from reliable_mq.errors import RecordError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.record import COMPRESSED, Record

_WORK_SIZE_MIN = 16 * 1024
"""Larger bodies are decompressed in a thread, so that other work is not blocked."""


def unpacked(record: Record, size_max: int = MESSAGE_BODY_SIZE_MAX) -> bytes:
    """Return the decompressed body; unchanged if it was not compressed.

    Raises:
        RecordError: when it is damaged, is larger than `size_max` bytes when decompressed, or
            needs a library that is not installed.
    """
    if not record.sys_flag & COMPRESSED:
        return record.body
    return decompress(record.body, record.sys_flag, size_max)


def unpack(
    records: Sequence[Record], size_max: int, enough: int
) -> Flow[tuple[int, dict[int, str]]]:
    """Decompress the bodies of `records` in place, up to `enough` bytes.

    Returns the number of decompressed records, counted from the first, and the errors by position.
    Records with an error stay as stored.
    """
    job = partial(_unpack, records, size_max, enough)
    packed = sum(len(record.body) for record in records if record.sys_flag & COMPRESSED)
    if packed < _WORK_SIZE_MIN:
        return job()
    return (yield from work(job))


def _unpack(records: Sequence[Record], size_max: int, enough: int) -> tuple[int, dict[int, str]]:
    faults: dict[int, str] = {}
    size = 0
    for at, record in enumerate(records):
        if size >= enough:
            return at, faults
        try:
            record.body = unpacked(record, size_max)
        except RecordError as error:
            faults[at] = str(error)
        size += len(record.body)
    return len(records), faults
