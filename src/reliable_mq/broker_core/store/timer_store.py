"""The files of the timers: log, wheel and checkpoint together.

Receives entries. Returns the chain of a slot. Knows only the places of messages.

A checkpoint syncs the log, then the wheel, and then notes the end of both. Only this note is
trusted. After a crash, data beyond the note may be incomplete, or may be lost at the next power
failure. So it is cut off, and its messages are taken up again from their queue. If the crash came
before the note, the wheel is ahead. Then it is set back first, while the entries that are needed
for this still exist.
Invariant M1: the wheel on the medium names no entry at or after the synced end of the timer log.
Source: Apache RocketMQ `TimerMessageStore`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from reliable_mq.broker_core.names import TIMER_TOPIC, is_revive_topic
from reliable_mq.broker_core.store import timer_log, timer_wheel
from reliable_mq.broker_core.store.consume_queue import QueueUnit
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_checkpoint import (
    TimerCheckpoint,
    load_timer_checkpoint,
    save_timer_checkpoint,
)
from reliable_mq.broker_core.store.timer_log import (
    DEFAULT,
    SIZE,
    TimedPlace,
    TimerEntry,
    TimerLog,
)
from reliable_mq.broker_core.store.timer_set_back import set_wheel_back
from reliable_mq.broker_core.store.timer_wheel import SLOTS, Slot, TimerWheel
from reliable_mq.errors import StoreError
from reliable_mq.telemetry import broker_events

log = logging.getLogger(__name__)

_SEARCH_MAX = 64 * 1024 * 1024  # bytes of the log to search for deliveries after a checkpoint


class TimerStore:
    """The files of the timers. The first timed message creates them.

    `queue_offset`: messages before it are taken up from the queue of timed messages. All slots
    before `read_ms` are delivered, by records before `delivered_end` in the commit log. No message
    in a later slot than its own is due after `late_ms`.

    Args:
        disk: the store's folder.
        file_size: bytes of one file of the timer log.
        precision_ms: duration of a slot, in milliseconds.
        is_sync_flush: whether only durable messages arrive here.
    """

    def __init__(
        self, disk: Disk, *, file_size: int, precision_ms: int, is_sync_flush: bool
    ) -> None:
        self._disk = disk
        self._file_size = file_size
        self._precision_ms = precision_ms
        self._is_sync_flush = is_sync_flush
        self._log: TimerLog
        self._wheel: TimerWheel
        self._noted = TimerCheckpoint()
        self._synced_before = 0  # log offset up to which earlier checkpoints synced messages
        self._done: list[tuple[int, int]] = []  # what others have done besides, see `is_done`
        self._by_slave: set[tuple[int, int]] = set()  # of it, what a slave has done meanwhile
        self.is_open = False
        self.queue_offset = 0
        self.read_ms = 0
        self.delivered_end = 0
        self.late_ms = 0

    @property
    def is_new(self) -> bool:
        """Whether there was no entry when the files were opened: all messages are taken up."""
        return not self._noted.log_end

    @property
    def room_end_ms(self) -> int:
        """End of the wheel's range: no earlier time uses a slot of a time before this one."""
        return self.read_ms + SLOTS * self._precision_ms

    @property
    def free_ms(self) -> int:
        """Nothing later is delivered yet: the wheel keeps a free slot for what is taken up."""
        return self.room_end_ms - 2 * self._precision_ms

    def open(self, store: MessageStore, now_slot_ms: int) -> None:
        """Recover the content of the folder, or begin; the queue of timed messages must exist.

        Raises:
            StoreCorrupt: when a file has impossible content.
        """
        noted = self._noted = load_timer_checkpoint(self._disk)
        if not self._is_whole(noted, now_slot_ms):
            self._begin(store, now_slot_ms)
            noted = self._noted
        self._log = TimerLog(self._disk, self._file_size, noted.log_end)
        self._wheel = TimerWheel(self._disk, self._precision_ms)
        set_wheel_back(self._log, self._wheel)
        self._log.cut()
        noted_offset = min(noted.queue_offset, noted.master_queue_offset)
        self.queue_offset = max(noted_offset, self._taken_up(store))
        self.read_ms = noted.read_ms
        self.delivered_end = min(noted.delivered_end, store.log.end)
        self.late_ms = noted.late_ms
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is not None:
            self.queue_offset = min(max(self.queue_offset, queue.first), queue.end)
        self.is_open = True

    def note_followed(self, followed: TimerCheckpoint) -> None:
        """Note the progress of a slave's master; files of an earlier time as a master are removed.

        Raises:
            OSError, StoreError: when the disk fails.
        """
        for name in self._disk.names(timer_log.FOLDER):
            self._disk.remove(f"{timer_log.FOLDER}/{name}")
        self._disk.remove(timer_wheel.PATH)
        save_timer_checkpoint(self._disk, followed)

    def progress(self) -> TimerCheckpoint:
        """Return what is delivered and taken up; of closed files, what they have noted."""
        if not self.is_open:
            return load_timer_checkpoint(self._disk)
        return msgspec.structs.replace(
            self._noted,
            read_ms=self.read_ms,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
        )

    def note_done(self, done_before: int, done_ms: int) -> bool:
        """Note what others have delivered, see `is_done`; return whether that is new.

        The next checkpoint saves it.
        """
        if self.is_done(done_before - 1, done_ms):
            return False
        self._done.append((self._noted.done_before, self._noted.done_ms))
        self._by_slave.add((done_before, done_ms))
        self._noted = msgspec.structs.replace(self._noted, done_before=done_before, done_ms=done_ms)
        return True

    def knows_done(self, queue_offset: int) -> bool:
        """Whether another broker may have delivered a message from this offset on."""
        return bool(self._done) or queue_offset < self._noted.done_before

    def is_done(self, queue_offset: int, due_ms: int, topic: str = "") -> bool:
        """Whether another broker has delivered a message; see `done_before`.

        It was the master of this former slave, or a slave of this master. The slave leaves notes
        about popped messages to its master.
        """
        if not self.knows_done(queue_offset):  # as a rule
            return False
        noted, is_popped = (self._noted.done_before, self._noted.done_ms), is_revive_topic(topic)
        return any(
            queue_offset < before
            and due_ms <= until
            and not (is_popped and (before, until) in self._by_slave)
            for before, until in (noted, *self._done)
        )

    def _is_whole(self, noted: TimerCheckpoint, now_slot_ms: int) -> bool:
        """Whether a checkpoint is plausible, and its files exist."""
        newest_ms = now_slot_ms + SLOTS * self._precision_ms  # allows for a clock that went back
        if not 0 < noted.read_ms <= newest_ms or noted.read_ms % self._precision_ms:
            return False
        if not noted.log_end:
            return True
        newest = (noted.log_end - 1) // self._file_size * self._file_size
        return (
            self._disk.size_of(f"{timer_log.FOLDER}/{newest:020d}") > 0
            and self._disk.size_of(timer_wheel.PATH) > 0
        )

    def _begin(self, store: MessageStore, now_slot_ms: int) -> None:
        """Begin with empty files: all messages in the log are taken up again.

        Past deliveries are found in the log, so lost files cost time, but no message.
        """
        for name in self._disk.names(timer_log.FOLDER):
            broker_events.TIMER_FILES_MISSING.log(log)
            self._disk.remove(f"{timer_log.FOLDER}/{name}")
        self._disk.remove(timer_wheel.PATH)
        queue = store.queue(TIMER_TOPIC, 0)
        first = queue.first if queue else 0
        self._noted = TimerCheckpoint(
            read_ms=now_slot_ms,
            queue_offset=first,
            master_queue_offset=first,
            changed_ms=now_slot_ms,
            delivered_end=store.log.start,
        )
        save_timer_checkpoint(self._disk, self._noted)

    def _taken_up(self, store: MessageStore) -> int:
        """Return the queue offset after the last entry's message; Apache's note may be older."""
        entry = self._log.last()
        record = store.read_record(entry.commit_log_offset) if entry else None
        if record is None or record.topic != TIMER_TOPIC:
            return 0
        return record.queue_offset + 1

    def add_entry(self, entry: TimerEntry) -> int:
        """Add an entry to its slot's chain; return its position. The caller must call `flush`."""
        position = self._log.room()
        self._log.add(entry, self._wheel.link(entry.slot_ms, position, _change(entry)))
        return position

    def room_of_run(self) -> int:
        """Return how many entries `add_run` can add now: the rest of a file."""
        self._log.room()
        return self._log.run_max

    def add_run(self, places: Sequence[TimedPlace], slot_ms: int, taken_ms: int) -> None:
        """Do `add_entry` for so many messages of one slot as `room_of_run` says, or fewer.

        None of them may recall another message.
        """
        begin, count = self._log.end, len(places)
        previous = self._wheel.link(slot_ms, begin, count, begin + (count - 1) * SIZE)
        self._log.add_run(places, previous, slot_ms, taken_ms)

    def prepare_older(self, store: MessageStore) -> None:
        """Prepare for an entry of a message that was taken up long ago.

        It must not be the last one of its file, which tells how long the file is needed.
        """
        self._log.room()
        if self._log.is_at_last and (newest := self._newest(store)):
            self._name(newest)

    def end_with_newest(self, store: MessageStore) -> bool:
        """Let the last entry name the newest message, if there is room; the same otherwise.

        Apache's broker takes up all messages behind that of the last entry, some for a second time.
        """
        last = self._log.last() if self.flush_at_last() else None
        newest = self._newest(store)
        is_older = last and newest and last.commit_log_offset < newest.commit_log_offset
        if newest and is_older and self._has_done(self._log.room):
            self._name(newest)
        return self.flush_at_last()

    def _newest(self, store: MessageStore) -> QueueUnit | None:
        """Return where the newest message is that was taken up."""
        queue, number = store.queue(TIMER_TOPIC, 0), self.queue_offset - 1
        return queue.unit(number) if queue and queue.first <= number < queue.end else None

    def _name(self, unit: QueueUnit) -> None:
        """Add an entry of a slot that is over. The wheel does not have it."""
        over_ms, (place, size, _) = self.read_ms - 2 * self._precision_ms, unit
        self._log.add(TimerEntry(-1, DEFAULT, over_ms, over_ms, place, size, 0, over_ms), -1)

    def flush(self) -> None:
        """Write the new entries."""
        self._log.flush()

    def flush_at_last(self) -> bool:
        """Write the new entries; return whether all are written: there was room for them."""
        return self._has_done(self._log.flush) and self._log.is_flushed

    def _has_done(self, work: Callable[[], object]) -> bool:
        """Do something; return whether there was room for it."""
        try:
            work()
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            return False
        return True

    def next_used(self, slot_ms: int, until_ms: int) -> int:
        """Return the first time from `slot_ms` on with a maybe used slot, at most `until_ms`."""
        return self._wheel.next_used(slot_ms, until_ms)

    def slot(self, slot_ms: int) -> Slot:
        """Return the slot of a time."""
        return self._wheel.slot(slot_ms)

    def is_expired(self, position: int) -> bool:
        """Whether an entry was removed with its message, and all earlier entries, too."""
        return position < self._log.start

    def entry(self, position: int) -> TimerEntry | None:
        """Return the entry at a position, or None without an entry."""
        return self._log.read(position)

    def chain(self, slot_ms: int) -> Iterator[tuple[int, TimerEntry]]:
        """Yield (position, entry) of a slot, newest first."""
        position = self._wheel.slot(slot_ms).last
        while position >= 0:
            entry = self._log.read(position)
            if entry is None:
                return
            yield position, entry
            position = entry.previous if entry.previous < position else -1  # -1: end, or damaged

    def leave(self, slot_ms: int, keep: Callable[[int, TimerEntry], bool]) -> None:
        """Remove unneeded entries from a slot, because Apache's broker delivers whole slots.

        At every moment the chain has at least the kept entries.
        """
        chain = list(self.chain(slot_ms))
        kept = [(position, entry) for position, entry in chain if keep(position, entry)]
        if len(kept) == len(chain):
            return
        positions = [position for position, _ in kept]
        for position in {position for position, _ in chain} - set(positions):
            self._log.retire(position, self.read_ms - self._precision_ms)
        for (position, entry), previous in zip(kept, [*positions[1:], -1], strict=False):
            if entry.previous != previous:
                self._log.relink(position, previous)
        last, first = (positions[0], positions[-1]) if positions else (-1, -1)
        count = sum(_change(entry) for _, entry in kept)
        self._wheel.set_slot(slot_ms, Slot(first, last, count))

    def advance(self, read_ms: int, delivered_end: int) -> None:
        """Note that all slots before `read_ms` are delivered durably."""
        self.read_ms = read_ms
        self.delivered_end = delivered_end

    def needs_checkpoint(self, store: MessageStore, used_ms: int) -> bool:
        """Whether a crash now would cost much work at the next start.

        False while entries wait for room: a checkpoint must not claim them.

        Args:
            store: its log would be searched for deliveries.
            used_ms: the last slot with a delivery.
        """
        if not self.is_open or not self._log.is_flushed:
            return False
        return (
            self.queue_offset != self._noted.queue_offset
            or self._noted.read_ms <= used_ms < self.read_ms
            or store.log.end - self._noted.delivered_end > _SEARCH_MAX
        )

    def begin_checkpoint(self, store: MessageStore, now_ms: int) -> Callable[[], None]:
        """Return the job of a checkpoint of the current state; it may run in another thread.

        It must run between two writes of batches. Raises, when it runs:
            StoreError, OSError: when the disk fails; the store must not be used any more.
        """
        self._log.remove_before(store.log.start)
        read = store.log.segments_from(self._synced_before)
        segments = [] if self._is_sync_flush else read
        self._synced_before = store.dispatched
        unsynced = self._log.take_unsynced()
        write_wheel = self._wheel.begin_checkpoint()
        noted = self._noted = TimerCheckpoint(
            read_ms=self.read_ms,
            log_end=self._log.end,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            state_version=self._noted.state_version,
            changed_ms=now_ms,
            counter=self._noted.counter + 1,
            delivered_end=self.delivered_end,
            done_before=self._noted.done_before,
            done_ms=self._noted.done_ms,
            late_ms=self.late_ms,
        )

        def work() -> None:
            for file in (*segments, *unsynced):
                file.sync()
            try:
                write_wheel()
                save_timer_checkpoint(self._disk, noted)
            except (OSError, StoreError) as error:
                if not is_out_of_room(error):
                    raise
                broker_events.TIMER_CHECKPOINT_NO_ROOM.log(log, error=error)
            for file in (*read, *unsynced):  # timed messages are read once; free the memory
                file.release()

        return work

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._wheel.close()


def _change(entry: TimerEntry) -> int:
    """Return the change in the number of waiting messages by an entry."""
    return -1 if entry.magic & timer_log.DELETE else 1
