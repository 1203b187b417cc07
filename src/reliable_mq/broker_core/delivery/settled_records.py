"""Records of popped messages that need nothing at their time: their checkpoint is settled.

When all messages of a checkpoint are acknowledged, neither its record nor those of the
acknowledgements change anything any more. The timers need not read them. So the places of these
records are kept until their slot of the timer wheel is loaded: eight bytes for each. A checkpoint
is followed from its pop until its last acknowledgement.

Records that are forgotten here are read at their time, which costs time and nothing else. But
acknowledgements must not be passed over if their checkpoint is not: its messages would come back.
Therefore:

- Places of a checkpoint and of its acknowledgements are added together, and `clear` forgets all.
- They are added only when the checkpoint is in its own slot, which is not loaded yet. This slot is
  before that of the acknowledgements.
- A checkpoint that goes to another slot than its own, because it is late or its slot is far away,
  makes the timers call `clear`.
- A checkpoint is followed only if no other one can have its key; see `revival`.

Invariant Y4: all places are counted, and are no more than their limit.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Collection

import msgspec

from reliable_mq.broker_core.store.timer_log import slot_of
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.pop_records import AHEAD_MS, CheckpointKey, PopCheckpoint

_OPEN_MAX = 10_000  # checkpoints, some 500 bytes each
_PLACES_MAX = 1_000_000
_RECORDS_MAX = 128  # of one checkpoint: a client may acknowledge a message again and again
_SPAN = 1_024  # a checkpoint of messages that are further apart is not followed
_NEVER = 1 << _SPAN
_NONE: frozenset[int] = frozenset()


class OpenCheckpoint(msgspec.Struct, eq=False):
    """A checkpoint with messages that are not acknowledged.

    `waiting` has a bit for each of them, counted from the first offset. `records` are the places of
    its acknowledgements, and `place` is its own one.
    """

    waiting: int
    revive_ms: int
    queue_offset: int
    place: int
    records: "array[int]"


class SettledRecords:
    """The checkpoints that are followed, and the places of settled ones by slot.

    Args:
        precision_ms: duration of a slot, in milliseconds.
    """

    def __init__(self, precision_ms: int) -> None:
        self._precision_ms = precision_ms
        self._open: OrderedDict[CheckpointKey, OpenCheckpoint] = OrderedDict()
        self._settled: deque[OpenCheckpoint] = deque()  # their places are not added yet
        self._places: dict[int, array[int]] = {}
        self._count = 0
        self._swept_ms = 0  # up to this time, the slots without entries are removed

    def invariants(self) -> None:
        """Y4; see the head of the module."""
        count = sum(map(len, self._places.values()))
        if not count == self._count <= _PLACES_MAX:
            raise InvariantBroken(f"Y4: {count} places, {self._count} are counted")

    def clear(self) -> None:
        """Forget everything."""
        self._open.clear()
        self._settled.clear()
        self._places.clear()
        self._count = 0

    def popped(self, checkpoint: PopCheckpoint, queue_offset: int, place: int) -> None:
        """Follow a checkpoint that was popped now, at a time at which none was popped before it.

        Args:
            checkpoint: it.
            queue_offset: of its record in the topic of the timers.
            place: the log offset of its record.
        """
        key, offsets = checkpoint.key, checkpoint.offsets
        known, start = self._open.get(key), key.start_offset
        if known is not None:
            known.waiting |= _NEVER  # acknowledgements would not say which of both they mean
            return
        if not 0 <= offsets[-1] - start < _SPAN or self._precision_ms > AHEAD_MS:
            return
        waiting = 0
        for offset in offsets:
            waiting |= 1 << offset - start
        self._open[key] = OpenCheckpoint(
            waiting, checkpoint.revive_ms, queue_offset, place, array("q")
        )
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)

    def acknowledged(
        self, key: CheckpointKey, revive_ms: int, offsets: Collection[int], place: int
    ) -> None:
        """Note a record of acknowledgements.

        Args:
            key: of their checkpoint.
            revive_ms: when its messages come back, as the acknowledgements say.
            offsets: of the messages.
            place: the log offset of the record.
        """
        known = self._open.get(key)
        if known is None:
            return
        records = known.records
        if known.revive_ms != revive_ms or len(records) == _RECORDS_MAX:
            del self._open[key]
            return
        waiting, start = known.waiting, key.start_offset
        for offset in offsets:
            if 0 <= offset - start < _SPAN:
                waiting &= ~(1 << offset - start)
        records.append(place)
        known.waiting = waiting
        if not waiting:
            del self._open[key]
            if len(self._settled) < _OPEN_MAX:  # else the timers are behind, or have no room
                self._settled.append(known)

    def add(self, taken_up: int, loaded_ms: int) -> None:
        """Add the places of the settled checkpoints that the timers have taken up.

        Args:
            taken_up: offset in the queue of the timers' topic, after the last record taken up.
            loaded_ms: the begin of the slot that is being loaded, or is the next to be loaded.
        """
        settled = self._settled
        while settled and settled[0].queue_offset < taken_up:
            known = settled.popleft()
            slot_ms = slot_of(known.revive_ms - AHEAD_MS, self._precision_ms)
            if slot_ms <= loaded_ms or not self._has_room(len(known.records) + 1, loaded_ms):
                continue
            self._of(slot_ms).append(known.place)
            self._of(slot_of(known.revive_ms, self._precision_ms)).extend(known.records)
            self._count += len(known.records) + 1

    def _of(self, slot_ms: int) -> "array[int]":
        places = self._places.get(slot_ms)
        if places is None:
            places = self._places[slot_ms] = array("q")
        return places

    def _has_room(self, count: int, loaded_ms: int) -> bool:
        """Whether there is room for more places; removes those of slots that had no entries."""
        if self._count + count > _PLACES_MAX and self._swept_ms != loaded_ms:
            self._swept_ms = loaded_ms
            for slot_ms in [slot_ms for slot_ms in self._places if slot_ms < loaded_ms]:
                self.take(slot_ms)
        return self._count + count <= _PLACES_MAX

    def take(self, slot_ms: int) -> frozenset[int]:
        """Return the places of settled records of a slot that is loaded now, and forget them."""
        places = self._places.pop(slot_ms, None)
        if places is None:
            return _NONE
        self._count -= len(places)
        return frozenset(places)
