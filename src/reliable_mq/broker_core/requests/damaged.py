"""A pull that meets damage: a record that cannot be read is skipped and named, the rest is served.

A client takes a pull's records one after another, by the sizes that they tell: behind one that is
damaged it finds none. A damaged body is served as it is, as Apache does: finding it would mean to
check each body's checksum with each pull; reconciliation finds it.
"""

import logging
from collections.abc import Iterable

from reliable_mq.broker_core.store.commit_log import CommitLog, segment_path
from reliable_mq.broker_core.store.consume_queue import Unit
from reliable_mq.broker_core.store.log_walk import record_at

log = logging.getLogger(__name__)

_NAMED_MAX = 10_000
_named: set[int] = set()  # log offsets of damage that the log of this process names already


def sound_records(commit_log: CommitLog, units: Iterable[Unit]) -> list[bytes]:
    """Return the records of these units that can be read; name the others in the log, once."""
    records = []
    for unit in units:
        offset, size = unit.commit_log_offset, unit.size
        found = record_at(commit_log, offset)
        if found is not None and found.size == size:
            records.append(commit_log.read(offset, size))
        elif offset >= commit_log.start and offset not in _named:
            if len(_named) < _NAMED_MAX:
                _named.add(offset)
            if offset >= commit_log.capacity_end:
                log.error(
                    "a consume queue names log offset %d, the log ends at %d: its unit is damaged, "
                    "readers skip it; remove the queue's files, they are built again at the start",
                    offset,
                    commit_log.end,
                )
                continue
            first, _segment = commit_log.segment_at(offset)
            log.error(
                "%s: the record at %d (log offset %d) is damaged, readers skip it; restore the "
                "file from a copy",
                segment_path(first),
                offset - first,
                offset,
            )
    return records
