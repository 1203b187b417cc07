"""The promise of a pop: each message is handed out for a time, and comes back unless acknowledged.

The log tells it all. A checkpoint hands messages out, an acknowledgement ends one of them, and what
comes back names its checkpoint. So:

    a message is handed out once from its queue, and only when it shows
    none comes back before its time, twice, or after an acknowledgement that the log has
    none that is not acknowledged stays away
    a confirmed acknowledgement in time is safe, and so are the checkpoints of what is answered
"""

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from tests.simulation.facts import Entry, Violation
from tests.simulation.ordered_pops import OrderedPops
from tests.simulation.plan import Plan

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.names import is_revive_topic
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.wire.pop_records import (
    ACK,
    ACKS,
    CHECKPOINT,
    NO_POP,
    CheckpointKey,
    PopCheckpoint,
    decode_acks,
    decode_checkpoint,
)

if TYPE_CHECKING:
    from tests.simulation.model import Model

BROKER = "broker"
_LATE_MS = 1_000  # so much later than its time a message may come back
_Message = tuple[CheckpointKey, int]  # and the queue offset
_Place = tuple[str, str, int, int]  # group, topic, queue, offset


class Handed(msgspec.Struct, eq=False):
    """One message of one checkpoint. `back`: what it came back as."""

    record: Entry
    checkpoint: PopCheckpoint
    offset: int
    acks: list[Entry] = msgspec.field(default_factory=list)
    back: Entry | None = None
    former: "Handed | None" = None  # another time of the same key, after the clock was set back

    @property
    def place(self) -> _Place:
        """Where the message is."""
        key = self.checkpoint.key
        return key.group, key.topic, key.queue_id, self.offset

    @property
    def revive_ms(self) -> int:
        """When the message comes back."""
        return self.checkpoint.revive_ms

    def __repr__(self) -> str:
        """Return a line for the reader of a violation."""
        key = self.checkpoint.key
        return (
            f"{key.topic}/{key.queue_id}#{self.offset} of {key.group}, which comes back at "
            f"{self.revive_ms} by the checkpoint at {self.record.log_offset}"
        )


class PoppedMessages:
    """What groups have in flight, by the message."""

    def __init__(self, model: "Model", plan: Plan) -> None:
        self._model = model
        self.in_order = OrderedPops(model)
        self._tick_ms = plan.tick_ms
        self._is_clock_set = plan.set_clock_every_ms > 0  # what is back already may count then
        self._per_file = plan.queue_file_size // CONSUME_QUEUE_UNIT_SIZE
        self._slack_ms = _LATE_MS + 2 * plan.tick_ms
        self._backlog_ms = 0.0
        self._handed: dict[_Message, Handed] = {}
        self._of_record: dict[int, list[Handed]] = {}  # by the log offset of the checkpoint
        self._popped: dict[_Place, Handed] = {}
        self._due: list[tuple[int, int, Handed]] = []
        self._pushes = itertools.count()
        self._stands_for: dict[_Message, CheckpointKey] = {}  # of former handles, in this life
        self._opened_ms: float | None = None
        self._seen_ms = 0

    # what the log says

    def recorded(self, entry: Entry, now_ms: int) -> bool:
        """Whether a record is of popped messages. Raises when it may not be there."""
        if entry.came_back:
            self._came_back(entry, now_ms)
        elif is_revive_topic(entry.real_topic) and entry.tag == CHECKPOINT:
            self._handed_out(entry, decode_checkpoint(entry.body))
        elif is_revive_topic(entry.real_topic) and entry.tag in (ACK, ACKS):
            acks = decode_acks(entry.body, BROKER)
            for handed in self._found(acks.key, acks.offsets):
                handed.acks.append(entry)
        else:
            return False
        return True

    def _found(self, key: CheckpointKey, offsets: Iterable[int]) -> list[Handed]:
        return [self._handed[key, each] for each in offsets if (key, each) in self._handed]

    def _handed_out(self, entry: Entry, checkpoint: PopCheckpoint) -> None:
        key = checkpoint.key
        end = self._model.shown_count(key.topic, key.queue_id)
        these = self._of_record[entry.log_offset] = []
        for offset in checkpoint.offsets:
            handed = Handed(entry, checkpoint, offset)
            handed.former = self._handed.get((key, offset))
            if handed.former is not None and not self._may_share(checkpoint, handed.former):
                raise Violation(f"two checkpoints have the key of {handed}")
            if offset >= end:
                raise Violation(f"{handed} does not show, and is handed out")
            if checkpoint.next_offset != NO_POP:
                if handed.place in self._popped:
                    raise Violation(f"{handed} was handed out: {self._popped[handed.place]}")
                self._popped[handed.place] = handed
            self._handed[key, offset] = handed
            these.append(handed)
            heapq.heappush(self._due, (handed.revive_ms, next(self._pushes), handed))

    def _may_share(self, checkpoint: PopCheckpoint, former: Handed) -> bool:
        """Whether a checkpoint may have the key of another one.

        While the clock is behind the timers, an extension may have the key of any other one. Of a
        pop a client may know that a loss of power took: then it extends what is popped again.
        """
        is_extension = former.checkpoint.next_offset == NO_POP and self._is_clock_set
        return is_extension or checkpoint.next_offset == NO_POP

    def _came_back(self, entry: Entry, now_ms: int) -> None:
        record, _, index = entry.came_back.partition(" ")
        of_record = self._of_record.get(int(record), ())
        if int(index) >= len(of_record):
            raise Violation(f"{entry} names a checkpoint that is not there: {entry.came_back}")
        handed = of_record[int(index)]
        in_time = [
            ack
            for ack in handed.acks
            if ack.store_time_ms < handed.revive_ms == ack.ends_ms  # else it was of a lost pop
        ]
        if in_time and handed.former is None:
            raise Violation(f"{handed} comes back after its acknowledgement {handed.acks}")
        if handed.back is not None:
            raise Violation(f"{handed} comes back twice, as {handed.back} and {entry}")
        if now_ms < handed.revive_ms:
            raise Violation(f"{handed} comes back {handed.revive_ms - now_ms} ms early")
        if entry.body != self._message(handed).body:
            raise Violation(f"{handed} comes back as another message: {entry}")
        handed.back = entry

    def _message(self, handed: Handed) -> Entry:
        _, topic, queue_id, offset = handed.place
        return self._model.queues[topic, queue_id].entries[offset]

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a record."""
        self.in_order.forget(entry)
        for handed in self._of_record.pop(entry.log_offset, ()):
            del self._handed[handed.checkpoint.key, handed.offset]
            if handed.former is not None:
                self._handed[handed.checkpoint.key, handed.offset] = handed.former
            if self._popped.get(handed.place) is handed:
                del self._popped[handed.place]
        if entry.came_back:
            record, _, index = entry.came_back.partition(" ")
            handed = self._of_record[int(record)][int(index)]
            handed.back = None
            heapq.heappush(self._due, (handed.revive_ms, next(self._pushes), handed))
        elif entry.tag in (ACK, ACKS) and is_revive_topic(entry.real_topic):
            acks = decode_acks(entry.body, BROKER)
            for handed in self._found(acks.key, acks.offsets):
                handed.acks.remove(entry)
                heapq.heappush(self._due, (handed.revive_ms, next(self._pushes), handed))

    # the time

    def disturbed(self) -> None:
        """Note that the clock begins anew: nothing that was due before is late yet."""
        self._opened_ms = None

    def opened(self, not_taken_up: int) -> None:
        """Begin another life, with so many timed messages that the broker has to look at first."""
        self._opened_ms = None
        self.in_order.opened()
        self._stands_for.clear()
        self._backlog_ms = not_taken_up // self._per_file * self._tick_ms

    def nothing_is_late(self, now_ms: int) -> None:
        """Check that what is due came back; called after a look at the clock."""
        before_ms = self._seen_ms
        if self._opened_ms is None:
            self._opened_ms = now_ms
        self._seen_ms = max(self._seen_ms, now_ms)
        while self._due and self._due[0][0] + self._slack_ms < now_ms:
            handed = self._due[0][-1]
            if self._is_open(handed):
                ready_ms = self._opened_ms + self._backlog_ms
                since_ms = max(handed.revive_ms, ready_ms, handed.record.shown_ms, before_ms)
                if handed.record.number >= self._model.visible:
                    return
                if now_ms <= since_ms + self._slack_ms:
                    return
                raise Violation(f"{handed} is late")
            heapq.heappop(self._due)

    def _is_open(self, handed: Handed) -> bool:
        """Whether a message is in flight, as the log has it; not if it has expired."""
        model = self._model
        is_there = model.by_offset.get(handed.record.log_offset) is handed.record
        if self._handed.get((handed.checkpoint.key, handed.offset)) is not handed or handed.former:
            return False
        if not is_there or handed.acks or handed.back is not None:
            return False
        return not (model.is_gone(handed.record) or model.is_gone(self._message(handed)))

    def all_are_settled(self, core: BrokerCore) -> None:
        """Check that nothing is in flight any more, and that no message was passed over."""
        for handed in self._handed.values():
            if self._is_open(handed):
                raise Violation(f"{handed} never came back")
        flying = core.state.popped
        is_sure = not self._model.start and not self._is_clock_set
        if is_sure and (flying.total or flying.uncounted):
            raise Violation(f"in flight are said to be {flying.in_flight}")
        for group, topic, queue_id in {place[:3] for place in self._popped}:
            begin = core.state.offsets.get(group, topic, queue_id) or 0
            entries = self._model.queues[topic, queue_id].entries
            for entry in entries[:begin]:
                place = (group, topic, queue_id, entry.queue_offset)
                is_wanted = not is_filtered(group) or entry.tag == TAG
                if is_wanted and place not in self._popped and not self._model.is_gone(entry):
                    raise Violation(f"{entry} was passed over: {group} never got it")

    # what clients are told

    def asked_to_end(
        self, key: CheckpointKey, revive_ms: int, offsets: Sequence[int], now_ms: int
    ) -> list[Handed]:
        """Return the messages that an acknowledgement must end, if it is confirmed.

        Not those with the same key and another time: it is of a pop that a loss of power took.
        """
        self.used(key)
        must_end = []
        for offset in offsets:
            now = self._stands_for.get((key, offset), key)
            handed = self._handed.get((now, offset))
            if handed is None or handed.back is not None or now_ms >= handed.revive_ms:
                continue
            if now == key and handed.revive_ms != revive_ms:
                continue
            if not self._model.is_gone(self._message(handed)):
                must_end.append(handed)
        return must_end

    def used(self, key: CheckpointKey) -> None:
        """Note that a client has used a handle: the former one does not stand for it any more."""
        for former in [each for each, new in self._stands_for.items() if new == key]:
            del self._stands_for[former]

    def ended(self, must_end: Sequence[Handed]) -> None:
        """Check that messages are acknowledged for sure."""
        safe = self._model.safe
        for handed in must_end:
            if not any(ack.number < safe for ack in handed.acks):
                raise Violation(f"{handed} is said to be acknowledged; there is {handed.acks}")

    def extended(self, former: CheckpointKey, new: CheckpointKey, offset: int) -> None:
        """Check that another time is safe, of which a client is told."""
        self.is_handed_out(new, offset)
        self._stands_for[former, offset] = new

    def is_handed_out(self, key: CheckpointKey, offset: int) -> Entry:
        """Return a message of which a client is told; its checkpoint must be safe."""
        handed = self._handed.get((key, offset))
        if handed is None or handed.record.number >= self._model.safe:
            raise Violation(f"{key} hands out {offset}, and a crash would take {handed}")
        return self._message(handed)


TAG = "red"


def is_filtered(group: str) -> bool:
    """Whether a group wants the messages with one tag only."""
    return group.endswith("-red")
