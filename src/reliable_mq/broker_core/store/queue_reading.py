"""Reading message n of a queue even if its unit is damaged: the log is the truth.

Receives a queue and a message number. Returns the record with that number, and never another one.
If a unit does not lead to its record, the log is searched between the records of the neighbouring
units. A record that is found repairs the unit; each damage is logged once. Plain pulls do not use
this module, because it checks bodies.
"""

import logging
from collections.abc import Iterator, Mapping

from reliable_mq.broker_core.dispatch import is_queued, queue_tags_code
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.broker_core.store.damage import STRETCHES_MAX
from reliable_mq.broker_core.store.log_walk import FoundRecord, LogWalk, next_record
from reliable_mq.broker_core.store.unit_reading import sound_record
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import Record, decode_record
from reliable_mq.wire.record_scan import are_valid, head_at, is_record_size

log = logging.getLogger(__name__)

SOUGHT_MAX = 64 * 1024 * 1024  # bytes of the log to search for one record
_NEIGHBOURS = 32  # units on each side that limit the search


class StoredQueueReader:
    """Reads the records of consume-queue units.

    Args:
        commit_log: the log.
        delays_ms: the delay of each level in milliseconds, for the units of delayed messages.
    """

    def __init__(self, commit_log: CommitLog, delays_ms: Mapping[int, int]) -> None:
        self._log = commit_log
        self._delays_ms = delays_ms
        self._lost: set[tuple[str, int, int]] = set()  # logged as lost; not searched again

    def message(self, queue: ConsumeQueue, number: int) -> Record | None:
        """Return message `number`; None when it is damaged or expired."""
        data = self.record(queue, number)
        return decode_record(data) if data else None

    def record(self, queue: ConsumeQueue, number: int) -> bytes | None:
        """Return the stored record of message `number`; None when it is damaged or expired."""
        unit = queue.unit(number)
        data = self._record_at(queue, number, unit)
        if data:
            return data
        is_likely = self.is_likely(queue, number, unit)
        if is_likely and self._is_gone(unit):
            return None
        key = (queue.topic, queue.queue_id, number)
        if key in self._lost:
            return None
        found = self._sought(queue, number)
        if found:
            data = bytes(found.buffer[found.at : found.at + found.size])
            self._replace_damaged_unit(
                queue, number, QueueUnit(found.offset, found.size, self._tags_code(found))
            )
            return data
        if len(self._lost) < STRETCHES_MAX:
            self._lost.add(key)
        if is_likely:
            sound_record(self._log, unit.commit_log_offset, unit.size)  # logs the damage
        else:
            broker_events.QUEUE_UNIT_DAMAGED.log(
                log, path=queue.path_of(number), queue_offset=number
            )
        return None

    def _is_gone(self, unit: QueueUnit) -> bool:
        """Whether a plausible unit leads to an expired record, or to damage that was logged."""
        offset = unit.commit_log_offset
        return offset < self._log.start or self._log.damage.covers(offset)

    def is_likely(self, queue: ConsumeQueue, number: int, unit: QueueUnit) -> bool:
        """Whether a unit is plausible: within the log, and between its neighbours."""
        begin, size = unit.commit_log_offset, unit.size
        if not (is_record_size(size) and 0 <= begin < self._log.written):
            return False
        if number > queue.first:
            before = queue.unit(number - 1)
            if begin < before.commit_log_offset + before.size:
                return False
        return number + 1 >= queue.end or begin + size <= queue.unit(number + 1).commit_log_offset

    def _record_at(self, queue: ConsumeQueue, number: int, unit: QueueUnit) -> bytes | None:
        """Return the record at the place of a unit, if it is the record of this message."""
        offset, size = unit.commit_log_offset, unit.size
        if not (is_record_size(size) and offset >= self._log.start):
            return None
        data = self._log.read(offset, size)
        if not are_valid(data, (offset,), (size,)):
            return None
        return (
            data
            if _is_message(FoundRecord(offset, size, memoryview(data), 0), queue, number)
            else None
        )

    def _sought(self, queue: ConsumeQueue, number: int) -> FoundRecord | None:
        """Search the record of a message between the records of its neighbours."""
        before = range(number - 1, max(queue.first, number - _NEIGHBOURS) - 1, -1)
        after = range(number + 1, min(queue.end, number + _NEIGHBOURS))
        left, right = self._first_sound(queue, before), self._first_sound(queue, after)
        until = right.commit_log_offset if right else self._log.written
        if left:
            begin = left.commit_log_offset + left.size
        else:
            begin = max(self._log.start, until - SOUGHT_MAX)
            first = next_record(self._log, begin - 1, until)
            begin = first.offset if first else until
        until = min(until, begin + SOUGHT_MAX)
        records = _records_between(self._log, begin, until)
        return next((one for one in records if _is_message(one, queue, number)), None)

    def _first_sound(self, queue: ConsumeQueue, numbers: range) -> QueueUnit | None:
        units = ((number, queue.unit(number)) for number in numbers)
        return next((unit for at, unit in units if self._record_at(queue, at, unit)), None)

    def _tags_code(self, found: FoundRecord) -> int:
        head = head_at(found.buffer, found.at)
        return queue_tags_code(head.topic, head.properties, head.store_time_ms, self._delays_ms)

    @staticmethod
    def _replace_damaged_unit(queue: ConsumeQueue, number: int, unit: QueueUnit) -> None:
        broker_events.QUEUE_UNIT_REBUILT.log(
            log, path=queue.path_of(number), queue_offset=number, log_offset=unit.commit_log_offset
        )
        queue.replace_unit(number, unit)


def _is_message(found: FoundRecord, queue: ConsumeQueue, number: int) -> bool:
    head = head_at(found.buffer, found.at)
    if (head.queue_offset, head.queue_id, head.topic) != (number, queue.queue_id, queue.topic):
        return False
    return is_queued(head.sys_flag)


def _records_between(commit_log: CommitLog, begin: int, until: int) -> Iterator[FoundRecord]:
    """Yield the valid records from `begin`, where a record begins, up to `until`; skip damage."""
    walk = LogWalk(commit_log, begin, begin)
    while walk.end < until:
        for found in walk:
            if found.offset >= until:
                return
            yield found
        later = next_record(commit_log, walk.end, until)
        if later is None:
            return
        walk.end = later.offset
