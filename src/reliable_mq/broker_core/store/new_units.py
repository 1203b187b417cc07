"""Units that recovery adds to a queue, for readable and for damaged records.

Receives records in log order, and the damage between them. Returns packed units. An unreadable
message keeps its number, so that later messages keep theirs.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit, pack_unit
from reliable_mq.broker_core.store.damage import DamagedRange
from reliable_mq.broker_core.store.log_walk import FoundRecord
from reliable_mq.wire.record import RECORD_SIZE_MIN


class NewUnits:
    """Units for one queue, built from the log, from message `begin` on."""

    __slots__ = ("begin", "end", "known_until", "units")

    def __init__(self, begin: int | None, known_until: int) -> None:
        self.begin = begin  # None: the number of the first record
        self.end = begin  # the number of the next message
        self.known_until = known_until  # the queue has all records before this log offset
        self.units = bytearray()

    def begin_at(self, number: int) -> None:
        """Forget the units, and begin with message `number`."""
        self.begin = self.end = number
        self.units.clear()

    def add(self, record: FoundRecord, number: int, tags_code: int) -> None:
        """Add the unit of a record that is message `number`."""
        self.units += pack_unit(record.offset, record.size, tags_code)
        self.end = number + 1
        self.known_until = record.offset + record.size

    def bridge(
        self, number: int, damage: Sequence[DamagedRange], queue: ConsumeQueue | None
    ) -> bool:
        """Add units up to message `number`, if its predecessors may be in the damage.

        Units that the queue has already are kept. The others divide the rest of the damage into
        places of the smallest record size.
        """
        if self.end is None or number < self.end:
            return False
        units = self._kept(damage, queue, number)
        after = _end_of(units[-1]) if units else self.known_until
        missing = number - self.end - len(units)
        if missing > _room(damage, after):
            return False
        self._extend([*units, *islice(_fillers(damage, after), missing)])
        return True

    def keep_damaged(self, damage: Sequence[DamagedRange], queue: ConsumeQueue) -> None:
        """Add the queue's next units while they point into damage."""
        if self.end is not None:
            self._extend(self._kept(damage, queue, queue.end))

    def _kept(
        self, damage: Sequence[DamagedRange], queue: ConsumeQueue | None, until: int
    ) -> list[QueueUnit]:
        kept: list[QueueUnit] = []
        begin, after = self.end or 0, self.known_until
        if queue is None or not queue.is_contiguous or begin < queue.first:
            return kept
        for number in range(begin, min(until, queue.end)):
            unit = queue.unit(number)
            is_next = unit.size >= RECORD_SIZE_MIN and unit.commit_log_offset >= after
            if not is_next or not any(_holds(stretch, unit) for stretch in damage):
                break
            kept.append(unit)
            after = _end_of(unit)
        return kept

    def _extend(self, units: Sequence[QueueUnit]) -> None:
        if units:
            self.units += b"".join(pack_unit(*unit) for unit in units)
            self.end = (self.end or 0) + len(units)
            self.known_until = _end_of(units[-1])


def _end_of(unit: QueueUnit) -> int:
    return unit.commit_log_offset + unit.size


def _holds(stretch: DamagedRange, unit: QueueUnit) -> bool:
    return stretch.begin <= unit.commit_log_offset and _end_of(unit) <= stretch.end


def _places(damage: Sequence[DamagedRange], after: int) -> Iterator[range]:
    """Yield the places for records of the smallest size in the damage after a log offset."""
    for begin, end in damage:
        yield range(max(begin, after), end - RECORD_SIZE_MIN + 1, RECORD_SIZE_MIN)


def _room(damage: Sequence[DamagedRange], after: int) -> int:
    return sum(map(len, _places(damage, after)))


def _fillers(damage: Sequence[DamagedRange], after: int) -> Iterator[QueueUnit]:
    for places in _places(damage, after):
        for place in places:
            yield QueueUnit(place, RECORD_SIZE_MIN, 0)
