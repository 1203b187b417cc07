"""The queues of a store as a start finds them: by a look at each, or by their folders.

Receives the progress note. Returns the queues for which a look at their file confirms the note, and
the places of all others. To list the folders of a queue, to open its files and to search its end
takes 0.2 ms, so 10,000 queues took two seconds of each start. After a clean stop the note names
every queue that has messages. Two reads show whether the file still is as the note says: the first
unit, the last one, and the blank behind it. Whoever removed or replaced a file is noticed as
before. The file is opened at its first use.

A queue with several files, or without messages, or of a topic that was deleted, is no such queue.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import BLANK_SIZE
from reliable_mq.broker_core.store.deletions import FOLDER, Deletions
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.evidence import QueueKey, confirms
from reliable_mq.broker_core.store.progress import (
    NotedQueues,
    QueueExtent,
    SeenExtent,
    StoreProgress,
)
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE

_PLACE = struct.Struct(">qi")  # log offset and size of a unit
_NOTHING = bytes(CONSUME_QUEUE_UNIT_SIZE)


class SeenQueues(NamedTuple):
    """What a look at the queues of a note has shown.

    Attributes:
        found: the queues for which the note is confirmed.
        others: what the note says of the other ones.
    """

    found: Mapping[QueueKey, SeenExtent]
    others: NotedQueues


def seen_queues(
    disk: Disk, log: CommitLog, note: StoreProgress, file_size: int, deletions: Deletions
) -> SeenQueues:
    """Look at the queues of a note; it is confirmed for none if another broker came since.

    Args:
        disk: the store's.
        log: the store's.
        note: of the clean stop after which nothing is known to have happened to the store.
        file_size: bytes of one file of a queue.
        deletions: topics that were deleted.
    """
    is_as_left = note.log_start == log.start and confirms(log, note)
    if deletions.are_of_others or not is_as_left:
        return SeenQueues({}, note.queues)
    found: dict[QueueKey, SeenExtent] = {}
    others: dict[str, dict[int, QueueExtent]] = {}
    for topic, extents in note.queues.items():
        if deletions.has(topic) or not extents:
            others[topic] = extents
            continue
        for queue_id, extent in extents.items():
            seen = _seen(disk, f"{FOLDER}/{topic}/{queue_id}", extent, note, file_size)
            if seen is None:
                others.setdefault(topic, {})[queue_id] = extent
            else:
                found[topic, queue_id] = seen
    return SeenQueues(found, others)


def _seen(
    disk: Disk, folder: str, extent: QueueExtent, note: StoreProgress, file_size: int
) -> SeenExtent | None:
    """Return what the files of a queue show; None: its units are not as the note says."""
    first, end, last = extent.first, extent.end, extent.last_log_offset
    in_file = first * CONSUME_QUEUE_UNIT_SIZE % file_size
    begin = first * CONSUME_QUEUE_UNIT_SIZE - in_file
    behind = end * CONSUME_QUEUE_UNIT_SIZE - begin
    if not 0 <= first < end or behind >= file_size:
        return None
    # The first units, and the last ones with the room for one more.
    path = f"{folder}/{begin:020d}"
    units = disk.look(path, file_size, in_file, behind + CONSUME_QUEUE_UNIT_SIZE)
    if units is None:
        return None
    log_offset, size = _PLACE.unpack_from(units)
    last_offset, last_size = _PLACE.unpack_from(units, len(units) - 2 * CONSUME_QUEUE_UNIT_SIZE)
    is_right = (
        0 < size < BLANK_SIZE
        and log_offset >= note.log_start
        and last_offset == last
        and 0 < last_size <= note.log_end - last
        and units.endswith(_NOTHING)
    )
    return SeenExtent(first, end, last, last + last_size) if is_right else None


def unseen_places(
    disk: Disk, note: StoreProgress | None, seen: SeenQueues, deletions: Deletions
) -> Iterator[QueueKey]:
    """Yield topic and number of each queue that must be loaded from its files.

    The folders of a topic are not listed if the note confirms all of its queues that it has.
    """
    noted = note.queues if note is not None else {}
    for topic in disk.names(FOLDER):
        if topic in noted and topic not in seen.others:
            continue
        for queue_id in disk.names(f"{FOLDER}/{topic}"):
            if queue_id.isdecimal() and (topic, int(queue_id)) not in seen.found:
                yield topic, int(queue_id)
    yield from deletions.queues()
