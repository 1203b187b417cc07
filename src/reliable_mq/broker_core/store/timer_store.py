"""Timer log, wheel and checkpoint as one: what waits, and how far that is safe.

Receives entries; hands on the chain of a slot; refuses to know messages beyond their place.

A checkpoint syncs the log first, then the wheel, then notes how far both reach. Only the note is
believed. What a crash leaves behind it may be there in part, or only until the power fails: it is
cut off, and its messages are taken up again from their queue. A wheel that is ahead, as the crash
came before the note, is set back first, while the entries are there that tell how.
Invariant M1: the wheel on the medium names no entry at or behind the synced end of the timer log.
Source: Apache RocketMQ `TimerMessageStore`.
"""

import logging
from collections.abc import Callable, Iterator

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store import timer_log, timer_wheel
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_checkpoint import (
    TimerCheckpoint,
    load_timer_checkpoint,
    save_timer_checkpoint,
)
from reliable_mq.broker_core.store.timer_log import TimerEntry, TimerLog
from reliable_mq.broker_core.store.timer_wheel import EMPTY, SLOTS, Slot, TimerWheel
from reliable_mq.errors import StoreError

log = logging.getLogger(__name__)

_SEARCH_MAX = 64 * 1024 * 1024  # of the log, for deliveries that no checkpoint covers


class TimerStore:
    """The files of the timers. They are made with the first timed message.

    `queue_offset` is up to where the queue of timed messages was taken up. All slots before
    `read_ms` are delivered, by records that lie before `delivered_end` in the commit log.

    Args:
        disk: the store's folder.
        file_size: bytes of one file of the timer log.
        precision_ms: how long a slot lasts.
        is_sync_flush: whether messages come here only when they are durable.
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
        self._synced_before = 0  # messages of the commit log that earlier checkpoints synced
        self.is_open = False
        self.queue_offset = 0
        self.read_ms = 0
        self.delivered_end = 0

    @property
    def room_end_ms(self) -> int:
        """Before this time a slot is free for its own time: the wheel has gone round only once."""
        return self.read_ms + SLOTS * self._precision_ms

    def open(self, store: MessageStore, now_slot_ms: int) -> None:
        """Recover what the folder holds, or begin; the queue of timed messages must be there.

        Raises:
            StoreCorrupt: when a file cannot be what it claims.
        """
        noted = self._noted = load_timer_checkpoint(self._disk)
        if not self._is_whole(noted, now_slot_ms):
            self._begin(store, now_slot_ms)
            noted = self._noted
        self._log = TimerLog(self._disk, self._file_size, noted.log_end)
        self._wheel = TimerWheel(self._disk, self._precision_ms)
        self._set_wheel_back()
        self._log.cut()
        noted_offset = min(noted.queue_offset, noted.master_queue_offset)
        self.queue_offset = max(noted_offset, self._taken_up(store))
        self.read_ms = noted.read_ms
        self.delivered_end = min(noted.delivered_end, store.log.end)
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is not None:
            self.queue_offset = min(max(self.queue_offset, queue.first), queue.end)
        self.is_open = True

    def _is_whole(self, noted: TimerCheckpoint, now_slot_ms: int) -> bool:
        """Whether a checkpoint can be true, and the files are there that it speaks of."""
        newest_ms = now_slot_ms + SLOTS * self._precision_ms  # should the clock have gone back
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
        """Begin with empty files: everything is taken up again that the log holds.

        What was delivered is found in the log, so that files which were lost cost time, no message.
        """
        for name in self._disk.names(timer_log.FOLDER):
            log.warning("timer files are missing; the rest is built again from the log")
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

    def _set_wheel_back(self) -> None:
        """Let the wheel name only entries before the end of the log, durably.

        The entries that it names were synced before it was written: they are whole, and nothing
        that is damaged lies between them and the end.
        """
        end = position = self._log.end
        is_ahead = False
        while (after := self._log.after(position)) != position:
            entry = self._log.read(position)
            if entry and self._wheel.slot(entry.slot_ms).last >= end:
                is_ahead = True
                self._set_slot_back(entry.slot_ms, end)
            position = after
        if is_ahead:
            self._wheel.begin_checkpoint()()

    def _set_slot_back(self, slot_ms: int, end: int) -> None:
        first, last, waiting = self._wheel.slot(slot_ms)
        while last >= end:
            entry = self._log.read(last)
            if entry:
                waiting -= _change(entry)
            last = entry.previous if entry and entry.previous < last else -1
        self._wheel.put(slot_ms, Slot(first, last, waiting) if last >= 0 else EMPTY)

    def _taken_up(self, store: MessageStore) -> int:
        """Return up to where messages were taken up, by the last entry: Apache's note may lag."""
        entry = self._log.last()
        record = store.read_record(entry.commit_log_offset) if entry else None
        if record is None or record.topic != TIMER_TOPIC:
            return 0
        return record.queue_offset + 1

    def put(self, entry: TimerEntry) -> int:
        """Add an entry to the chain of its slot; return its position. `flush` must follow."""
        slot = self._wheel.slot(entry.slot_ms)
        position = self._log.append(entry._replace(previous=slot.last))
        self._link(entry, position, slot)
        return position

    def _link(self, entry: TimerEntry, position: int, slot: Slot) -> None:
        first = position if slot.first < 0 else slot.first
        self._wheel.put(entry.slot_ms, Slot(first, position, slot.waiting + _change(entry)))

    def flush(self) -> None:
        """Write what was put."""
        self._log.flush()

    def next_used(self, slot_ms: int, until_ms: int) -> int:
        """Return the first time from `slot_ms` on whose slot may be used, at most `until_ms`."""
        return self._wheel.next_used(slot_ms, until_ms)

    def slot(self, slot_ms: int) -> Slot:
        """Return the slot of a time."""
        return self._wheel.slot(slot_ms)

    def is_expired(self, position: int) -> bool:
        """Whether an entry went with its message, and so did those before it."""
        return position < self._log.start

    def entry(self, position: int) -> TimerEntry | None:
        """Return the entry at a position, or None when there is none."""
        return self._log.read(position)

    def chain(self, slot_ms: int) -> Iterator[tuple[int, TimerEntry]]:
        """Yield (position, entry) of a slot, newest first."""
        position = self._wheel.slot(slot_ms).last
        while position >= 0:
            entry = self._log.read(position)
            if entry is None:
                return
            yield position, entry
            position = entry.previous if entry.previous < position else -1  # or it is damaged

    def leave(self, slot_ms: int, keep: Callable[[int, TimerEntry], bool]) -> None:
        """Take out of a slot what need not be kept: Apache's broker delivers a slot as a whole.

        At every moment the chain holds at least what is kept.
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
        self._wheel.put(slot_ms, Slot(first, last, count))

    def advance(self, read_ms: int, delivered_end: int) -> None:
        """Note that all slots before `read_ms` are delivered for good."""
        self.read_ms = read_ms
        self.delivered_end = delivered_end

    def needs_checkpoint(self, store: MessageStore, used_ms: int) -> bool:
        """Whether a crash now would cost more than a moment of work.

        Entries that found no room yet are not to be vouched for.

        Args:
            store: its log is searched for deliveries then.
            used_ms: the last slot from which something was delivered.
        """
        if not self.is_open or not self._log.is_flushed:
            return False
        return (
            self.queue_offset != self._noted.queue_offset
            or self._noted.read_ms <= used_ms < self.read_ms
            or store.log.end - self._noted.delivered_end > _SEARCH_MAX
        )

    def begin_checkpoint(self, store: MessageStore, now_ms: int) -> Callable[[], None]:
        """Return the work of a checkpoint as of now; it may run in another thread.

        It runs between two writes of batches. Raises, when it runs:
            StoreError, OSError: when the disk fails; the store is of no further use then.
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
                log.warning("no room for a checkpoint of the timers, the last one stays: %s", error)
            for file in (*read, *unsynced):  # each timed message was read once, to be taken up
                file.release()

        return work

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()
        self._wheel.close()


def _change(entry: TimerEntry) -> int:
    """Return by how many more messages wait with an entry."""
    return -1 if entry.magic & timer_log.DELETE else 1
