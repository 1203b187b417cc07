"""Popped messages that are about to come back: their checkpoints, in the last second before.

A message in flight needs no memory. Its checkpoint, and its acknowledgements, are timed messages
for the revive topic; they wait on the disk, see `timers`. The timers hand a checkpoint over one
second before its messages come back, and its acknowledgements after it. What is not acknowledged
then is stored in the retry topic; see `coming_back`.

An acknowledgement that came before the timers handed its checkpoint over may not be durable yet,
and they take up only what is durable. So a checkpoint waits until they have taken up all timed
messages that the log had then. An acknowledgement that they take up late counts at once: its turn
among the timed messages comes after the last one, and the clock may be behind that. See
`take_late`.

While the clock is behind the timers, checkpoints from one place have one key. Their messages are
kept apart, and an acknowledgement ends those of all of them. A checkpoint is not kept if another
one has its messages. The other one remembers its place: of both, the log names the one that the
timers handed over last, because a restart may hand only that one over again.

Until its messages are stored, the timers do not count a checkpoint as delivered: after a crash they
hand it over again. Messages that had come back already are found in the log.
Invariant Y1: a checkpoint that is kept has a message that is not acknowledged, and its time.
Source: Apache RocketMQ `PopReviveService`.
"""

import heapq
from collections.abc import Iterable, Iterator

import msgspec

from reliable_mq.broker_core.delivery.timed_message import TimedMessage
from reliable_mq.broker_core.store.timer_log import DEFAULT, TimerEntry, slot_of
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.errors import InvariantBroken, RecordError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.pop_records import (
    ACK,
    ACKS,
    AHEAD_MS,
    CHECKPOINT,
    CheckpointKey,
    PopAcks,
    PopCheckpoint,
    bits_of,
    decode_acks,
    decode_checkpoint,
)
from reliable_mq.wire.properties import TAGS
from reliable_mq.wire.record import Record

log = limited_log(__name__)


class DueCheckpoint(msgspec.Struct, eq=False):
    """A checkpoint whose messages come back soon.

    `waiting` has a bit for each message that is not acknowledged and has not come back. `place` is
    the log offset of its record. `positions` are its entries of the timer log, and those of its
    acknowledgements; none if it was found in the revive topic. `heard_end`: the offset at which
    the queue of the timers' topic ended in the log when this came; acknowledgements that came
    before have lower offsets there. `former`: an earlier checkpoint with the same key. `twins` are
    the places and the messages of checkpoints with this key that this one stands for.
    """

    checkpoint: PopCheckpoint
    waiting: int
    place: int
    positions: list[int]
    is_placed: bool
    heard_end: int
    former: "DueCheckpoint | None" = None
    twins: list[tuple[int, tuple[int, ...]]] = msgspec.field(default_factory=list)

    def names_of(self, index: int) -> list[tuple[int, int]]:
        """Return the places of the checkpoints that have a message, with its number there."""
        offset = self.checkpoint.offsets[index]
        found = [
            (place, offsets.index(offset)) for place, offsets in self.twins if offset in offsets
        ]
        return [(self.place, index), *found]


class Revival:
    """The checkpoints that are due soon, by key and by time.

    Args:
        broker: name of this broker, which old acknowledgements do not have.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._by_key: dict[CheckpointKey, DueCheckpoint] = {}  # the newest of each key
        self._times: list[tuple[int, int, DueCheckpoint]] = []  # a heap; some are done
        self._count = 0
        self._heard_end = self._appended_end = 0
        self.unplaced = 0  # checkpoints here that were found in the revive topic

    def __len__(self) -> int:
        return len(self._by_key)

    def invariants(self) -> None:
        """Y1; see the head of the module."""
        timed = {id(due) for _, _, due in self._times}
        kept = [due for newest in self._by_key.values() for due in _with_former(newest)]
        if not {id(due) for due in kept} <= timed:
            raise InvariantBroken(f"Y1: {len(kept)} checkpoints, {len(timed)} times")
        if not all(due.waiting for due in kept):
            raise InvariantBroken("Y1: a checkpoint is kept that has no waiting message")

    def acks_in(self, record: Record, tag: str) -> PopAcks | None:
        """Return the acknowledgements in a record for the revive topic; None: it has none."""
        try:
            return decode_acks(record.body, self._broker) if tag in (ACK, ACKS) else None
        except RecordError:
            return None  # `take` logs it

    def hear(self, heard_end: int, appended_end: int) -> None:
        """Note how far the timers have taken up their topic, and where it ends in the log.

        Args:
            heard_end: offset in the queue of that topic, after the last message taken up.
            appended_end: offset in this queue, after the last message in the log, durable or not.
        """
        self._heard_end, self._appended_end = heard_end, appended_end

    def take(self, record: Record, tag: str, position: int = -1) -> None:
        """Take a record for the revive topic: a checkpoint, or acknowledgements of one.

        Args:
            record: it, as it waited in the topic of the timers or in the revive topic.
            tag: of the record; it says which of these it is.
            position: of its entry of the timer log; -1: it has none.
        """
        try:
            if tag == CHECKPOINT:
                self._add(decode_checkpoint(record.body), record.commit_log_offset, position)
            elif tag in (ACK, ACKS):
                acks = decode_acks(record.body, self._broker)
                self.acknowledge(acks.key, acks.offsets, position)
        except RecordError as error:
            broker_events.POP_RECORD_UNREADABLE.log(
                log, log_offset=record.commit_log_offset, error=error
            )

    def _add(self, checkpoint: PopCheckpoint, place: int, position: int) -> None:
        key = checkpoint.key
        waiting = (1 << len(checkpoint.offsets)) - 1 & ~checkpoint.bits
        former = self._by_key.get(key)
        if not waiting:
            return
        for due in _with_former(former):
            if set(checkpoint.offsets) <= set(due.checkpoint.offsets):
                if place != due.place:
                    due.twins.append((place, checkpoint.offsets))
                return
        is_placed = position >= 0
        positions, heard_end = [position] if is_placed else [], self._appended_end
        due = DueCheckpoint(checkpoint, waiting, place, positions, is_placed, heard_end, former)
        self._by_key[key] = due
        self._count += 1
        self.unplaced += not is_placed
        heapq.heappush(self._times, (checkpoint.revive_ms, self._count, due))

    def acknowledge(self, key: CheckpointKey, offsets: Iterable[int], position: int = -1) -> bool:
        """Note acknowledgements; return whether their checkpoint is here, and not done."""
        newest = self._by_key.get(key)
        if newest is None:
            return False
        for due in _with_former(newest):
            due.waiting &= ~bits_of(due.checkpoint, tuple(offsets))
            if position >= 0:
                due.positions.append(position)
            if not due.waiting:
                self.forget(due)
        return True

    def forget(self, due: DueCheckpoint) -> None:
        """Forget a checkpoint: none of its messages is waiting any more."""
        key, due.waiting = due.checkpoint.key, 0
        newest = self._by_key[key]
        if newest is not due:
            for later in _with_former(newest):
                if later.former is due:
                    later.former = due.former
        elif due.former is not None:
            self._by_key[key] = due.former
        else:
            del self._by_key[key]
        self.unplaced -= not due.is_placed
        self._drop_gone()

    def _drop_gone(self) -> None:
        while self._times and not self._times[0][2].waiting:
            heapq.heappop(self._times)

    def due(self, until_ms: int) -> DueCheckpoint | None:
        """Return the first checkpoint whose messages come back at `until_ms` or before.

        None also if an acknowledgement of the first one may not be taken up yet.
        """
        if not self._times or self._times[0][0] > until_ms:
            return None
        due = self._times[0][2]
        return due if due.heard_end <= self._heard_end else None

    def places(self, key: CheckpointKey) -> list[int]:
        """Return the entries of the timer log of the checkpoints here that have a key."""
        return [due.positions[0] for due in _with_former(self._by_key.get(key)) if due.is_placed]

    @property
    def floor_ms(self) -> int | None:
        """When the first checkpoint here was handed over, or should have been; None: none here."""
        return self._times[0][0] - AHEAD_MS if self._times else None

    def positions(self) -> Iterator[int]:
        """Yield the entries of the timer log that are still needed."""
        for newest in self._by_key.values():
            for due in _with_former(newest):
                yield from due.positions


def take_late(
    revival: Revival,
    files: TimerStore,
    timed: TimedMessage | None,
    entry: TimerEntry,
    precision_ms: int,
) -> None:
    """Take acknowledgements whose time was over when the timers took them up.

    They come again by their entry, which does no harm. They get a second entry: after a restart
    they must not come later than the messages of their checkpoint.

    Args:
        revival: may have their checkpoint.
        files: get the second entry.
        timed: the record; one of a checkpoint waits for its turn.
        entry: it gives them their turn.
        precision_ms: duration of a slot, in milliseconds.
    """
    acks = revival.acks_in(timed.record, timed.properties.get(TAGS, "")) if timed else None
    if timed is None or acks is None:
        return
    places = [place for each in revival.places(acks.key) if (place := files.entry(each))]
    due_ms = max(timed.due_ms, files.read_ms + 1, *(place.due_ms for place in places))
    position = -1
    if due_ms < entry.due_ms:
        slot_ms = slot_of(due_ms, precision_ms)
        again = entry._replace(magic=DEFAULT, slot_ms=slot_ms, due_ms=due_ms)
        position = files.add_entry(again)
    revival.acknowledge(acks.key, acks.offsets, position)


def _with_former(newest: DueCheckpoint | None) -> Iterator[DueCheckpoint]:
    """Yield a checkpoint, and earlier ones with its key."""
    while newest is not None:
        due, newest = newest, newest.former
        yield due
