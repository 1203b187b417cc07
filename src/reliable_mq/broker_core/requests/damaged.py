"""A pull that meets damage: a record that cannot be read is skipped and named, the rest is served.

A client takes a pull's records one after another, by the sizes that they tell: behind one that is
damaged it finds none. A damaged body is skipped where damage is known; elsewhere it is served as it
is, as Apache does: finding it would mean to check each body's checksum with each pull. Recovery
finds it in the newest part of the log, reconciliation everywhere.
"""

from collections.abc import Iterable

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import Unit
from reliable_mq.broker_core.store.unit_reading import sound_record


def sound_records(commit_log: CommitLog, units: Iterable[Unit]) -> list[bytes]:
    """Return the records of these units that can be read; name the others in the log, once."""
    places = [(unit.commit_log_offset, unit.size) for unit in units]
    return [commit_log.read(*place) for place in places if sound_record(commit_log, *place)]
