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
from collections.abc import Iterator

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import BLANK_SIZE
from reliable_mq.broker_core.store.deletions import FOLDER, Deletions
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.evidence import QueueKey, confirms
from reliable_mq.broker_core.store.progress import SeenExtent, StoreProgress
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE

SeenQueues = dict[QueueKey, SeenExtent]

_PLACE = struct.Struct(">qi")  # log offset and size of a unit
_NOTHING = bytes(CONSUME_QUEUE_UNIT_SIZE)


def seen_queues(
    disk: Disk, log: CommitLog, note: StoreProgress, file_size: int, deletions: Deletions
) -> SeenQueues:
    """Return the queues for which a look confirms the note; none if another broker came since.

    Args:
        disk: the store's.
        log: the store's.
        note: of the clean stop after which nothing is known to have happened to the store.
        file_size: bytes of one file of a queue.
        deletions: topics that were deleted.
    """
    found = SeenQueues()
    is_as_left = note.log_start == log.start and confirms(log, note)
    if deletions.are_of_others or not is_as_left:
        return found
    for topic, extents in note.queues.items():
        if deletions.has(topic):
            continue
        folder = f"{FOLDER}/{topic}/"
        for queue_id, extent in extents.items():
            first, end, last = extent.first, extent.end, extent.last_log_offset
            in_file = first * CONSUME_QUEUE_UNIT_SIZE % file_size
            begin = first * CONSUME_QUEUE_UNIT_SIZE - in_file
            behind = end * CONSUME_QUEUE_UNIT_SIZE - begin
            if not 0 <= first < end or behind >= file_size:
                continue
            path = f"{folder}{queue_id}/{begin:020d}"
            looked = disk.look(path, file_size, in_file, behind + CONSUME_QUEUE_UNIT_SIZE)
            last_size = 0 if looked is None else _last_size(looked, note, last)
            if last_size:
                found[topic, queue_id] = SeenExtent(first, end, last, last + last_size)
    return found


def _last_size(units: bytes, note: StoreProgress, last: int) -> int:
    """Return the size of the last record of a queue; 0: its units are not as the note says.

    Args:
        units: the first ones, and the last ones with the room for one more.
        note: of the store.
        last: where the last record is in the log, as the note says.
    """
    begin, size = _PLACE.unpack_from(units)
    last_begin, last_size = _PLACE.unpack_from(units, len(units) - 2 * CONSUME_QUEUE_UNIT_SIZE)
    is_right = (
        0 < size < BLANK_SIZE
        and begin >= note.log_start
        and last_begin == last
        and 0 < last_size <= note.log_end - last
        and units.endswith(_NOTHING)
    )
    return last_size if is_right else 0


def unseen_places(
    disk: Disk, note: StoreProgress | None, seen: SeenQueues, deletions: Deletions
) -> Iterator[QueueKey]:
    """Yield topic and number of each queue that must be loaded from its files.

    The folders of a topic are not listed if the note confirms all of its queues that it has.
    """
    noted = note.queues if note is not None and seen else {}
    for topic in disk.names(FOLDER):
        queues = noted.get(topic)
        if queues and all((topic, queue_id) in seen for queue_id in queues):
            continue
        for queue_id in disk.names(f"{FOLDER}/{topic}"):
            if queue_id.isdecimal() and (topic, int(queue_id)) not in seen:
                yield topic, int(queue_id)
    yield from deletions.queues()
