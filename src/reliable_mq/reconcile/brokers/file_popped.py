"""The reader of a store's checkpoints: what consumers by the message have in flight.

Receives the path of a store directory. It follows the queues of timed messages and of the revive
log backwards, to where everything is over. It opens files for reading only.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from reliable_mq.errors import RecordError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE, RECORD_SIZE_MAX
from reliable_mq.reconcile.brokers.file_queues import UNIT, QueueFiles, is_offset_name, queues_of
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.reconcile.brokers.popped import (
    INVISIBLE_MS_MAX,
    LATE_MS,
    REVIVE_PREFIX,
    TAGS,
    holds_checkpoints,
    in_flight,
)
from reliable_mq.wire.properties import REAL_TOPIC
from reliable_mq.wire.properties import TAGS as TAG
from reliable_mq.wire.record import Record, decode_record

_BLOCK = 1024


def read_in_flight(store: str, now_ms: int) -> Progress:
    """Return the first offset that each group has in flight in each queue, by the message.

    Args:
        store: the store directory.
        now_ms: the moment, by the broker's clock.
    """
    root = Path(store)
    queues = [queue for queue in queues_of(root) if holds_checkpoints(queue.topic)]
    if not any(queue.topic.startswith(REVIVE_PREFIX) for queue in queues):
        return {}  # nobody has ever popped here
    folder = root / "commitlog"
    segments = sorted(path for path in folder.iterdir() if is_offset_name(path.name))
    oldest_ms = now_ms - INVISIBLE_MS_MAX - LATE_MS
    found = (each for queue in queues for each in _newest(queue, segments, oldest_ms))
    return in_flight(found, now_ms)


def _newest(
    queue: QueueFiles, segments: Sequence[Path], oldest_ms: int
) -> Iterator[tuple[str, bytes]]:
    """Yield tag and body of the notes that a queue lists, from the newest back."""
    low, high = queue.bounds()
    while high > low:
        first = max(low, high - _BLOCK)
        for index in range(high - 1, first - 1, -1):
            unit = queue.read_units(index, 1)
            if len(unit) < CONSUME_QUEUE_UNIT_SIZE:
                continue
            offset, size, _ = UNIT.unpack(unit)
            record = _record(segments, offset, size)
            if record is None:
                continue
            if record.store_time_ms < oldest_ms:
                return
            properties = record.property_map()
            of_revive = queue.topic.startswith(REVIVE_PREFIX) or properties.get(
                REAL_TOPIC, ""
            ).startswith(REVIVE_PREFIX)
            if of_revive and (tag := properties.get(TAG, "")) in TAGS:
                yield tag, record.body
        high = first


def _record(segments: Sequence[Path], offset: int, size: int) -> Record | None:
    """Return the record at a log offset; None: it is not there, or cannot be read."""
    if not 0 < size <= RECORD_SIZE_MAX:
        return None
    for path in reversed(segments):
        base = int(path.name)
        if base <= offset:
            try:
                with path.open("rb") as file:
                    file.seek(offset - base)
                    return decode_record(file.read(size))
            except (OSError, RecordError):
                return None
    return None
