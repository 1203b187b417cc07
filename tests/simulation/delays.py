"""The promise of a delay level: in order, never early, never late, never lost."""

from typing import TYPE_CHECKING

from tests.simulation.facts import Entry, Queue, Violation, first_kept
from tests.simulation.plan import DELAY_LEVELS

from reliable_mq.broker_core.config_texts import parse_delay_levels
from reliable_mq.broker_core.delivery.schedule import CHECK_INTERVAL_MS
from reliable_mq.broker_core.delivery.schedule import PATH as DELAY_OFFSETS_PATH
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson

if TYPE_CHECKING:
    from tests.simulation.model import Model

_NOTED_WITHIN_MS = 4_000  # a crash may repeat the deliveries of so long a time

DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


class Delays:
    """How far each level was delivered."""

    def __init__(self, model: "Model", tick_ms: float, queue_file_size: int) -> None:
        self._model = model
        self._per_file = queue_file_size // CONSUME_QUEUE_UNIT_SIZE
        self._crossed_ms = dict.fromkeys(DELAYS_MS, 0)  # one check ends where a queue's file does
        # One check also ends where the units end that are written: the rest are in memory.
        self._slack_ms = 2 * CHECK_INTERVAL_MS + 2 * tick_ms
        self._next = dict.fromkeys(DELAYS_MS, 0)
        self._opened_ms: float | None = None
        self._seen_ms = 0
        self._set_back_ms = 0.0  # how far the clock was set back, all in all
        self._shown_at: dict[int, float] = {}
        self._deliveries: dict[int, list[Entry]] = {}  # by the delayed record's log offset
        self._cause: dict[int, int] = {}  # a delivery's log offset -> the delayed record's

    def _queue(self, level: int) -> Queue:
        return self._model.queues.get((SCHEDULE_TOPIC, level - 1)) or Queue()

    def _head(self, level: int) -> int:
        """Return which message of a level comes next; one that has expired never comes."""
        kept = first_kept(self._queue(level).entries, self._model.start)
        self._next[level] = max(self._next[level], kept)
        return self._next[level]

    def delivered(self, entry: Entry, now_ms: int) -> bool:
        """Whether a record is the next delivery of a level. Raises when it comes too early."""
        for level, delay_ms in DELAYS_MS.items():
            queue, at = self._queue(level), self._head(level)
            if at >= queue.visible:
                continue
            origin = queue.entries[at]
            place = (origin.real_topic, origin.real_queue_id, level)
            if place != (entry.topic, entry.queue_id, entry.level):
                continue
            if (origin.body, origin.reconsume_times) != (entry.body, entry.reconsume_times):
                continue
            aged_ms = now_ms + self._set_back_ms - self._shown_at.get(origin.log_offset, 0)
            if now_ms < origin.store_time_ms + delay_ms and aged_ms < delay_ms:
                raise Violation(f"{origin} of level {level} is delivered early, as {entry}")
            self._next[level] = at + 1
            if (at + 1) % self._per_file == 0:
                self._crossed_ms[level] = now_ms
            self._deliveries.setdefault(origin.log_offset, []).append(entry)
            self._cause[entry.log_offset] = origin.log_offset
            return True
        return False

    def clock_was_set(self, change_ms: float) -> None:
        """Note that the clock jumped."""
        self._set_back_ms += max(0.0, -change_ms)

    def shown(self, entry: Entry, now_ms: int) -> None:
        """Note that a record shows, from a time on that never goes back."""
        if entry.topic == SCHEDULE_TOPIC:
            self._shown_at[entry.log_offset] = now_ms + self._set_back_ms

    def disturbed(self) -> None:
        """Note that the clock begins anew: nothing that was due before is late yet."""
        self._opened_ms = None

    def nothing_is_late(self, now_ms: int) -> None:
        """Check that what is due was delivered; called after a look at the clock."""
        self._seen_ms = now_ms
        if self._opened_ms is None:
            self._opened_ms = now_ms
        for level, delay_ms in DELAYS_MS.items():
            queue, at = self._queue(level), self._head(level)
            if at < queue.visible:
                due_ms = max(queue.entries[at].store_time_ms + delay_ms, self._opened_ms)
                due_ms = max(due_ms, queue.entries[at].shown_ms, self._crossed_ms[level])
                if now_ms > due_ms + self._slack_ms:
                    raise Violation(f"{queue.entries[at]} of level {level} is late: due {due_ms}")

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a record."""
        origin = self._cause.pop(entry.log_offset, None)
        if origin is not None and origin in self._deliveries:
            self._deliveries[origin].remove(entry)
        self._deliveries.pop(entry.log_offset, None)

    def opened(self, disk: MemoryDisk) -> None:
        """Take the offsets of a broker that starts: what lies before them must be delivered."""
        text = disk.read_text(DELAY_OFFSETS_PATH)
        saved = fastjson.loads(text)["offsetTable"] if text else {}
        life_began_ms, self._opened_ms = self._opened_ms, None
        for level in DELAYS_MS:
            entries = self._queue(level).entries
            self._next[level] = min(int(saved.get(str(level), saved.get(level, 0))), len(entries))
            for entry in entries[: self._next[level]]:
                if not self._deliveries.get(entry.log_offset) and not self._model.is_gone(entry):
                    raise Violation(f"{entry} of level {level} is lost: it counts as delivered")
            for entry in entries[self._next[level] :]:
                for delivery in self._deliveries.get(entry.log_offset, ()):
                    is_of_last_life = life_began_ms and life_began_ms <= delivery.shown_ms
                    if is_of_last_life and delivery.shown_ms < self._seen_ms - _NOTED_WITHIN_MS:
                        raise Violation(f"{entry} of level {level} was delivered long ago")

    def all_are_delivered(self) -> None:
        """Check that nothing waits any more."""
        for level in DELAYS_MS:
            for entry in self._queue(level).entries:
                if not self._deliveries.get(entry.log_offset) and not self._model.is_gone(entry):
                    raise Violation(f"{entry} of level {level} was never delivered")
