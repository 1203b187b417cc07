"""Timed messages: each is stored again in its real queue, in the requested millisecond.

A timed message waits in the queue of `rmq_sys_wheel_timer`. `_take_up` gives it an entry of the
timer log, and a slot of the wheel; a slot is one second, as in Apache's broker. One slot ahead of
time a slot is loaded into `due_positions`. So delivery is precise to the millisecond, although the
files are not. What needs nothing at its time is passed over then; see `settled_records`.

`ended_slots` decides when a slot counts as delivered. What is due for the revive topic goes to
`revival`: it says what was popped, and what was acknowledged.
Invariant L6: noted read time <= delivered time <= loaded time.
Source: Apache RocketMQ `TimerMessageStore`.
"""

from collections.abc import Callable

import msgspec

from reliable_mq.broker_core.delivery.done_entries import leave_done
from reliable_mq.broker_core.delivery.due_positions import DuePositions
from reliable_mq.broker_core.delivery.ended_slots import EndedSlots
from reliable_mq.broker_core.delivery.followed_timers import FollowedTimers
from reliable_mq.broker_core.delivery.recalls import Recalls
from reliable_mq.broker_core.delivery.revival import Revival, take_late
from reliable_mq.broker_core.delivery.settled_records import SettledRecords
from reliable_mq.broker_core.delivery.timed_message import (
    TimedMessage,
    read_timed,
    slot_of_round,
    store_when_due,
    timed_of,
)
from reliable_mq.broker_core.delivery.topic_counts import OF_TIMERS, TopicCounts
from reliable_mq.broker_core.delivery.written_notes import WrittenNote, WrittenNotes
from reliable_mq.broker_core.names import TIMER_TOPIC, is_revive_topic
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_checkpoint import TimerCheckpoint
from reliable_mq.broker_core.store.timer_log import DEFAULT, DELETE, ROLL, TimerEntry, slot_of
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.java_hash import topic_hash
from reliable_mq.wire.properties import TAGS

log = limited_log(__name__)

# Limits of one turn, so that a burst does not block the event loop.
_MESSAGES_MAX = 1_000
_ENTRIES_MAX = 5_000
_SIZE_MAX = 8 * 1024 * 1024
_SOON_MS = 60_000  # a record is stored and taken up in a shorter time


class Timers:
    """The messages that wait for their due time.

    Args:
        store: where the messages are stored, before and after.
        files: the timer log and the wheel.
        precision_ms: duration of a slot, in milliseconds.
        roll_slots: a message that is due after more slots enters the wheel again later.
        recalls_within_topic: whether a recall finds only messages of the topic that it was sent to.
            False: any message with its key, as in Apache's broker.
        revival: gets what is due for the revive topic. Default: a new one.
    """

    def __init__(
        self,
        store: MessageStore,
        files: TimerStore,
        *,
        precision_ms: int,
        roll_slots: int,
        recalls_within_topic: bool = False,
        revival: Revival | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self.followed = FollowedTimers(files, precision_ms)  # of a slave
        self.precision_ms = precision_ms
        self._roll_slots = roll_slots
        self.revival = revival or Revival("")
        self.written = WrittenNotes(precision_ms)
        self.settled = SettledRecords(precision_ms)
        self.counts = TopicCounts(OF_TIMERS)
        self._recalls = Recalls(self.counts, is_within_topic=recalls_within_topic)
        self.refused = 0  # messages since the start, because too many waited
        self._due = DuePositions()  # of the loaded slots
        self._loaded_ms = 0  # all slots before this time are in `_due`
        self._chain = -1  # next position to load of the slot at `_loaded_ms`; -1: not begun
        self._needless: frozenset[int] = frozenset()  # log offsets of this slot that need nothing
        self._delivered_ms = 0
        self._late_ms = 0  # no message that was taken up too late is due later
        self._used_ms = 0  # the last slot from which something was delivered
        self.ended = EndedSlots(files, self.revival, self._recalls, precision_ms)
        self._caught_up_ms = 0  # last time when the whole queue was taken up

    def invariants(self) -> None:
        """L6; see the head of the module."""
        if not self._files.is_open:
            return
        if not self._files.read_ms <= self._delivered_ms <= self._loaded_ms:
            raise InvariantBroken(
                f"L6: read {self._files.read_ms}, delivered {self._delivered_ms}, "
                f"loaded {self._loaded_ms}"
            )

    @property
    def not_taken_up(self) -> int:
        """The number of timed messages that are not in the wheel yet."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        return queue.end - self._files.queue_offset if queue is not None else 0

    def behind_ms(self, now_ms: int) -> int:
        """Return how far delivery is behind the clock, in milliseconds; 0 without timers."""
        return max(0, now_ms - self._delivered_ms) if self._files.is_open else 0

    def settle(self, now_ms: int) -> None:
        """Continue from the state of the files, once the log is open; no-op without timers.

        Raises:
            StoreCorrupt: when a file has impossible content.
        """
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None or queue.end == 0:
            return
        files = self._files
        files.open(self._store, self._slot_of(now_ms))
        self.settled.clear()
        if files.is_new:
            self.counts.clear()
        self._loaded_ms = self._delivered_ms = files.read_ms
        self._late_ms = max(now_ms, files.read_ms + 1, files.late_ms)
        self.ended.settle(self._store, now_ms)

    def run(self, now_ms: int) -> int:
        """Take up new messages, and store the due ones; return how many messages were due."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None or queue.end == 0:
            return 0
        try:
            if not self._files.is_open:
                self.settle(now_ms)
            self._take_up(queue, now_ms)
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            broker_events.TIMER_LOG_NO_ROOM.log(log, error=error)
            return 0
        self._load(now_ms)
        count = self._deliver(now_ms)
        self.ended.stored(self._store.log.durable)
        self.invariants()
        return count

    def _slot_of(self, due_ms: int) -> int:
        return slot_of(due_ms, self.precision_ms)

    def _take_up(self, queue: ConsumeQueue, now_ms: int) -> None:
        """Give each new message an entry and a slot.

        While messages are left in the queue, a message that became due later than `_caught_up_ms`
        is not delivered: one of the messages left may recall it.
        """
        files = self._files
        files.queue_offset = max(files.queue_offset, queue.first)
        end = min(queue.end, files.queue_offset + _MESSAGES_MAX)
        taken_ms = self._slot_of(now_ms + 1)
        far_ms = min(files.room_end_ms, taken_ms + self._roll_slots * self.precision_ms)
        while files.queue_offset < end:
            if self.written.take_run(files, end, taken_ms, (self._loaded_ms, far_ms)):
                continue
            timed = self.written.take(files.queue_offset) or self._read_new(queue)
            if timed and not files.is_done(files.queue_offset, timed.due_ms, timed.topic):
                self._put(timed, now_ms)
            files.queue_offset += 1
        files.flush()
        is_behind = files.queue_offset < queue.end
        self._caught_up_ms = min(self._caught_up_ms, now_ms) if is_behind else now_ms
        self.revival.hear(files.queue_offset, self._store.appender.lane(TIMER_TOPIC, 0).next)
        self.settled.add(files.queue_offset, self._loaded_ms)

    def _read_new(self, queue: ConsumeQueue) -> TimedMessage | None:
        """Return the next message to take up; None: it is damaged, or no timed message."""
        offset = self._files.queue_offset
        record = self._store.reader.message(queue, offset)
        timed = read_timed(record, self.precision_ms)
        if record is not None and timed is None:
            broker_events.TIMED_MESSAGE_UNREADABLE.log(log, queue_offset=offset, topic=TIMER_TOPIC)
        return timed

    def _put(self, timed: TimedMessage | WrittenNote, now_ms: int) -> None:
        """Put a message into its slot, or into one after which it enters the wheel again."""
        due_ms, precision_ms = max(timed.due_ms, self._delivered_ms + 1), self.precision_ms
        slot_ms, magic = self._slot_of(due_ms), DEFAULT | (DELETE if timed.deleted_key else 0)
        taken_ms, free_end_ms = now_ms // precision_ms * precision_ms, self._files.room_end_ms
        if slot_ms - taken_ms >= self._roll_slots * precision_ms or slot_ms >= free_end_ms:
            magic |= ROLL
            slot_ms = slot_of_round(slot_ms, taken_ms, free_end_ms, self._roll_slots, precision_ms)
            due_ms = slot_ms + precision_ms
        if due_ms > timed.due_ms:
            self._late_ms = max(self._late_ms, due_ms)
            self._files.late_ms = max(self._files.late_ms, due_ms)
        topic, place, size = timed.topic, timed.place, timed.size
        entry = TimerEntry(-1, magic, taken_ms, slot_ms, place, size, topic_hash(topic), due_ms)
        self._add(entry, timed)
        if not is_revive_topic(topic):
            self.counts.add(timed.topic, -1 if timed.deleted_key else 1, now_ms)
        elif due_ms != timed.due_ms:
            self.settled.clear()
            if timed.due_ms <= self._delivered_ms:
                late = timed if isinstance(timed, TimedMessage) else self._read(entry)
                take_late(self.revival, self._files, late, entry, precision_ms)

    def _put_soon(self, timed: TimedMessage, entry: TimerEntry, now_ms: int) -> bool:
        """Put a message at the end of its round into its own slot, if that comes soon.

        Another round would be a record that is taken up later. What recalls or acknowledges the
        message may be in its slot already, and must not come before it.
        """
        due_ms = max(timed.due_ms, self._due.first_ms + 1)
        slot_ms, soon_ms = self._slot_of(due_ms), self._roll_slots // 2 * self.precision_ms
        if due_ms - now_ms > min(_SOON_MS, soon_ms) or slot_ms >= self._files.room_end_ms:
            return False
        self._files.prepare_older(self._store)
        self._add(entry._replace(magic=entry.magic & ~ROLL, slot_ms=slot_ms, due_ms=due_ms), timed)
        return True

    def _add(self, entry: TimerEntry, timed: TimedMessage | WrittenNote) -> None:
        """Add an entry to its slot, and to its bucket if the slot is loaded."""
        position, slot_ms = self._files.add_entry(entry), entry.slot_ms
        if slot_ms < self._loaded_ms or (slot_ms == self._loaded_ms and self._chain >= 0):
            self._due.add(position, entry.due_ms)
            self._recalls.add(entry, timed)

    def _load(self, now_ms: int) -> None:
        """Load the slots up to the next one, within the limits of one turn."""
        files, budget = self._files, _ENTRIES_MAX
        until_ms = self._slot_of(now_ms) + 2 * self.precision_ms
        while budget > 0:
            if self._chain < 0:
                self._loaded_ms = files.next_used(self._loaded_ms, max(until_ms, self._loaded_ms))
                if self._loaded_ms >= until_ms:
                    return
                self._chain = files.slot(self._loaded_ms).last
                self._needless = self.settled.take(self._loaded_ms)
            budget -= 1
            while self._chain >= 0 and budget > 0:
                self._wait_for(self._chain, entry := files.entry(self._chain))
                self._chain = entry.previous if entry and entry.previous < self._chain else -1
                budget -= 1
            if self._chain < 0:
                self._loaded_ms += self.precision_ms

    def _wait_for(self, position: int, entry: TimerEntry | None) -> None:
        """Put a loaded entry into its bucket."""
        if entry is None:
            if not self._files.is_expired(position):
                broker_events.TIMER_ENTRY_MISSING.log(log, position=position)
            return
        if entry.commit_log_offset in self._needless:
            self._used_ms = max(self._used_ms, entry.slot_ms)
            return
        if not entry.due_ms or entry.magic & DELETE:
            timed = self._read(entry)
            if timed is None:
                return
            self._recalls.add(entry, timed)
            if not entry.due_ms:
                due_ms = entry.slot_ms + 1 if entry.magic & ROLL else timed.due_ms
                entry = entry._replace(due_ms=due_ms)
        self._due.add(position, max(entry.due_ms, self._delivered_ms + 1))

    def _read(self, entry: TimerEntry | None) -> TimedMessage | None:
        return timed_of(self._store, entry, self.precision_ms)

    def _deliver(self, now_ms: int) -> int:
        """Store the due messages; return how many messages were due."""
        limit_ms = min(self.limit_ms(now_ms), self._loaded_ms, self._caught_up_ms)
        self.ended.begin(self._store.log.end)
        count = size = 0
        while (is_flushed := self._files.flush_at_last()) and self._due.is_due(limit_ms):
            positions = self._due.first()
            for index, position in enumerate(positions):
                if count == _MESSAGES_MAX or size > _SIZE_MAX:
                    self._due.keep_of_first(positions[index:])
                    return count
                try:
                    size += self._deliver_one(position, now_ms)
                except (OSError, StoreError) as error:  # no room for the next file of a log
                    self._due.keep_of_first(positions[index:])
                    if isinstance(error, StoreError) or not is_out_of_room(error):
                        raise
                    broker_events.TIMER_LOG_NO_ROOM.log(log, error=error)
                    return count
                count += 1
            self._due.end_first()
        if is_flushed:  # see `_put_soon`
            self._finish(limit_ms, now_ms)
        return count

    def _deliver_one(self, position: int, now_ms: int) -> int:
        """Store the message of an entry, unless it was recalled; return its size."""
        entry = self._files.entry(position)
        timed = self._read(entry)
        if entry is None or timed is None:
            return 0
        self._used_ms = max(self._used_ms, entry.slot_ms)
        is_roll, is_deletion = bool(entry.magic & ROLL), bool(entry.magic & DELETE)
        is_popped = is_revive_topic(timed.topic)
        if is_popped and not is_roll:
            if not self._files.is_done(timed.record.queue_offset, timed.due_ms, timed.topic):
                self.revival.take(timed.record, timed.properties.get(TAGS, ""), position)
            return entry.size
        if not is_roll and self._recalls.takes_back(timed, is_recall=is_deletion):
            return entry.size
        if self._files.is_done(timed.record.queue_offset, timed.due_ms, timed.topic):
            pass  # a slave has delivered it
        elif not (
            self.ended.knows_any and self.ended.was_delivered(timed.identity(is_roll=is_roll))
        ):
            if is_roll and self._put_soon(timed, entry, now_ms):
                return entry.size
            store_when_due(self._store, timed, entry.taken_ms, now_ms, is_roll=is_roll)
        if not is_popped:
            self.counts.add(timed.topic, 1 if is_deletion else -1, now_ms)
        return entry.size

    def _finish(self, limit_ms: int, now_ms: int) -> None:
        """Note that all messages that are due up to `limit_ms` are delivered."""
        self._delivered_ms = max(self._delivered_ms, limit_ms)
        read_ms = self.ended.end(self._delivered_ms, self._store.log.end)
        if read_ms is not None and self._delivered_ms >= self._files.late_ms:
            self._recalls.end(read_ms, now_ms)

    @property
    def delivered_ms(self) -> int:
        """The time up to which everything is delivered; 0 without timers."""
        return self._delivered_ms if self._files.is_open else 0

    def limit_ms(self, now_ms: int) -> int:
        """Return up to when the timers deliver now: a full wheel holds them back."""
        return min(now_ms, self._files.free_ms)

    def has_late(self, until_ms: int) -> bool:
        """Whether messages are left that are due by then, and may have been taken up too late.

        A broker that begins without the files of its timers takes all messages up too late.
        """
        until_ms = min(self._late_ms, until_ms)
        is_loaded = self._caught_up_ms > 0 and self._loaded_ms > until_ms
        return self._files.is_open and (self._due.is_due(until_ms) or not is_loaded)

    def checkpoint(self, now_ms: int) -> TimerCheckpoint:
        """Return the progress, for slaves: what is durably delivered, and what is taken up.

        A late message is in a later slot than its own, and slaves know the own one only.
        """
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None or queue.end == 0:
            return TimerCheckpoint(read_ms=self._slot_of(now_ms))
        said = self._files.progress() if self._files.is_open else self.followed.told()
        is_late = self.has_late(now_ms) or self._delivered_ms < self._files.late_ms
        return msgspec.structs.replace(said, queue_offset=0) if is_late else said

    def begin_checkpoint(self, now_ms: int) -> Callable[[], None] | None:
        """Return the job that saves the progress; None when there is no progress.

        The job may run in another thread, between two writes of batches.
        """
        is_needed = self._files.needs_checkpoint(self._store, self._used_ms)
        return self._files.begin_checkpoint(self._store, now_ms) if is_needed else None

    def take_back(self, done_before: int, done_ms: int, now_ms: int) -> None:
        """Note what a slave has delivered while this master was away, before the first delivery."""
        if self._files.is_open and self._files.note_done(done_before, done_ms):
            self._files.begin_checkpoint(self._store, now_ms)()

    def close(self) -> None:
        """Save all progress and close the files. All batches must be durable."""
        files = self._files
        if not files.is_open:
            self.followed.save()
            return
        self.ended.stored(self._store.log.end)
        if not files.end_with_newest(self._store):  # the next start takes these messages up again
            files.close()
            return
        waiting = {*self.revival.positions(), *self._due}
        leave_done(
            files,
            self._store,
            waiting,
            end_ms=min(self._loaded_ms, self._used_ms + self.precision_ms),
            slot_ms=self.precision_ms,
            now_ms=self._delivered_ms,
        )
        files.close()
