"""The promise of a timed message: in its millisecond, never early, never lost, never twice."""

import heapq
import itertools
from typing import TYPE_CHECKING

from tests.simulation.facts import Entry, Violation

from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE

if TYPE_CHECKING:
    from tests.simulation.model import Model

_PRECISION_MS = 50


class TimedMessages:
    """The timed messages that wait, and what was delivered."""

    def __init__(self, model: "Model", tick_ms: float, queue_file_size: int) -> None:
        self._model = model
        self._tick_ms = tick_ms
        self._per_file = queue_file_size // CONSUME_QUEUE_UNIT_SIZE
        self._backlog_ms = 0.0  # one look takes up no more than a file of the queue holds
        self._slack_ms = _PRECISION_MS + 2 * tick_ms
        self._waiting: dict[tuple[str, int, bytes], list[Entry]] = {}
        self._due: list[tuple[int, int, int, Entry]] = []  # when, log offset, number of the push
        self._pushes = itertools.count()
        self._causes: dict[int, Entry] = {}  # by the delivery's log offset
        self._recalls: dict[str, list[Entry]] = {}  # by the key of what is taken back
        self._delivered: set[int] = set()  # log offsets of timed messages
        self._opened_ms: float | None = None
        self._seen_ms = 0  # the latest time that the broker saw: earlier ones are over for it

    def appended(self, entry: Entry) -> None:
        """Note a timed message that was stored, or a recall of one."""
        if entry.deleted_key:
            self._recalls.setdefault(entry.deleted_key, []).append(entry)
            return
        place = (entry.real_topic, entry.real_queue_id, entry.body)
        self._waiting.setdefault(place, []).append(entry)
        heapq.heappush(self._due, (entry.due_ms, entry.log_offset, next(self._pushes), entry))

    def delivered(self, entry: Entry, now_ms: int) -> bool:
        """Whether a record is the delivery of a timed message. Raises when it comes too early."""
        if not entry.is_timed_delivery:
            return False
        waiting = self._waiting.get((entry.topic, entry.queue_id, entry.body))
        if not waiting:
            raise Violation(f"a timed message is delivered twice, as {entry}")
        origin = min(waiting, key=lambda one: one.due_ms)
        if now_ms < origin.due_ms or origin.number >= self._model.visible:
            raise Violation(f"{origin} is delivered {origin.due_ms - now_ms} ms early, as {entry}")
        if self._is_taken_back(origin):
            raise Violation(f"{origin} was taken back, and is delivered as {entry}")
        waiting.remove(origin)
        self._causes[entry.log_offset] = origin
        self._delivered.add(origin.log_offset)
        return True

    def disturbed(self) -> None:
        """Note that the clock begins anew: nothing that was due before is late yet."""
        self._opened_ms = None

    def _is_taken_back(self, entry: Entry) -> bool:
        """Whether a recall shows that may keep a message from being delivered.

        It is in the slot of its message. A message that was sent twice with one key may be in two.
        """
        visible, slot = self._model.visible, _slot_of(entry)
        recalls = self._recalls.get(entry.unique_key, ())
        return any(one.number < visible and _slot_of(one) == slot for one in recalls)

    def nothing_is_late(self, now_ms: int) -> None:
        """Check that what is due was delivered; called after a look at the clock."""
        before_ms = self._seen_ms
        if self._opened_ms is None:
            self._opened_ms = now_ms
        self._seen_ms = max(self._seen_ms, now_ms)
        while self._due and self._due[0][0] + self._slack_ms < now_ms:
            entry = self._due[0][-1]
            is_due = entry.log_offset not in self._delivered and self._is_stored(entry)
            if is_due and entry.unique_key not in self._recalls:
                ready_ms = self._opened_ms + self._backlog_ms
                since_ms = max(entry.due_ms, ready_ms, entry.shown_ms, before_ms)
                if entry.number >= self._model.visible or now_ms <= since_ms + self._slack_ms:
                    return
                raise Violation(f"{entry} is late: it was due at {entry.due_ms}")
            heapq.heappop(self._due)

    def _is_stored(self, entry: Entry) -> bool:
        is_there = self._model.by_offset.get(entry.log_offset) is entry
        return is_there and not self._model.is_gone(entry)

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a record."""
        origin = self._causes.pop(entry.log_offset, None)
        if origin is not None:
            self._delivered.discard(origin.log_offset)
            self.appended(origin)
        if entry.deleted_key:
            self._recalls[entry.deleted_key].remove(entry)
            if not self._recalls[entry.deleted_key]:
                del self._recalls[entry.deleted_key]
        elif entry.due_ms:
            self._delivered.discard(entry.log_offset)
            place = (entry.real_topic, entry.real_queue_id, entry.body)
            self._waiting[place] = [e for e in self._waiting[place] if e is not entry]

    def opened(self, not_taken_up: int) -> None:
        """Begin another life, with so many messages that the broker has to look at first."""
        self._opened_ms = None
        self._backlog_ms = not_taken_up // self._per_file * self._tick_ms

    def all_are_delivered(self) -> None:
        """Check that nothing waits any more."""
        for waiting in self._waiting.values():
            for entry in waiting:
                if entry.unique_key not in self._recalls and not self._model.is_gone(entry):
                    raise Violation(f"{entry} was never delivered")


def _slot_of(entry: Entry) -> int:
    return (int(entry.due_ms) - 1) // _PRECISION_MS
