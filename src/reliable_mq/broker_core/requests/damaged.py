"""A pull that meets damage: a record that cannot be read is skipped and named, the rest is served.

A client takes a pull's records one after another, by the sizes that they tell: behind one that is
damaged it finds none. What no start has looked at is checked whole, bodies and all, and pulls that
find it sound cost little more. What was checked at the start, or came since, is checked by size and
magic only, as long as no damage is known: a body that is damaged while the broker runs is served as
it is, as Apache does, until the next start; reconciliation finds it.
"""

from collections.abc import Iterable

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import Unit
from reliable_mq.broker_core.store.unit_reading import sound_record


def sound_records(commit_log: CommitLog, units: Iterable[Unit]) -> list[bytes]:
    """Return the records of these units that can be read; name the others in the log, once."""
    records = [sound_record(commit_log, unit.commit_log_offset, unit.size) for unit in units]
    return [record for record in records if record]
