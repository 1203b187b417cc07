"""Slots of the timer wheel that are over, until they count as delivered.

A slot counts when the records of all its messages are durable, and none of its checkpoints of
popped messages waits any more; see `revival`. A slot with a recall does not count while a message
waits in a later slot than its own; see `recalls`. After a crash the timers hand the other slots
over again. What was delivered of them is found in the log, so it is not delivered twice.
"""

from collections import Counter, deque

from reliable_mq.broker_core.delivery.recalls import Recalls
from reliable_mq.broker_core.delivery.revival import Revival
from reliable_mq.broker_core.delivery.timed_message import (
    TimedIdentity,
    deliveries_since,
    identity_of_popped,
)
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_store import TimerStore


class EndedSlots:
    """The slots of one timer wheel.

    Args:
        files: note which slots are delivered.
        revival: has the checkpoints that wait.
        recalls: of the loaded slots.
        precision_ms: duration of a slot, in milliseconds.
    """

    def __init__(
        self, files: TimerStore, revival: Revival, recalls: Recalls, precision_ms: int
    ) -> None:
        self._files = files
        self._revival = revival
        self._recalls = recalls
        self._precision_ms = precision_ms
        self._delivered_ms = 0
        # (log end, log offset from where to search deliveries of later slots, end of the slots)
        self.in_flight: deque[tuple[int, int, int]] = deque()
        self._waiting: deque[tuple[int, int]] = deque()  # the same without the log end
        self._begin = -1  # log end before the current deliveries; -1: no deliveries
        self._known: Counter[TimedIdentity] = Counter()  # deliveries before a crash
        self._known_until_ms = 0

    def settle(self, store: MessageStore, now_ms: int) -> None:
        """Find out what was delivered of the slots that do not count as delivered."""
        self._known, last_ms = deliveries_since(store, self._files.delivered_end)
        self._known_until_ms = max(now_ms, last_ms)

    @property
    def knows_any(self) -> bool:
        """Whether there were deliveries before a crash."""
        return bool(self._known)

    def was_delivered(self, identity: TimedIdentity) -> bool:
        """Whether this was delivered before a crash; each delivery is told once."""
        if not self._known or self._known[identity] <= 0:
            return False
        self._known[identity] -= 1
        return True

    def has_come_back(self, place: int, index: int) -> bool:
        """Whether a message of a checkpoint had come back before a crash; each is told once."""
        return self.was_delivered(identity_of_popped(place, index))

    def begin(self, log_end: int) -> None:
        """Note where deliveries begin, unless they have begun."""
        if self._begin < 0:
            self._begin = log_end

    def end(self, delivered_ms: int, log_end: int) -> int | None:
        """Note that all is delivered up to a time; return the end of a slot that is now over.

        None: no other slot is over.
        """
        self._delivered_ms = delivered_ms
        read_ms = delivered_ms // self._precision_ms * self._precision_ms
        # Some of these deliveries may belong to the current slot, which is not over.
        begin, self._begin = self._begin, -1
        if read_ms <= self._last_ms:
            if self._waiting and delivered_ms >= self._files.free_ms:
                self.count(log_end)
            return None
        if read_ms <= self._known_until_ms:
            # deliveries found at the start may belong to the current slot, too
            begin = self._files.delivered_end
        self._waiting.append((begin, read_ms))
        self.count(log_end)
        return read_ms

    @property
    def _last_ms(self) -> int:
        """The end of the last slot that is over."""
        if self._waiting:
            return self._waiting[-1][1]
        return self.in_flight[-1][2] if self.in_flight else self._files.read_ms

    def count(self, log_end: int) -> None:
        """Let slots count from which no checkpoint waits, once the log is durable up to its end."""
        floor_ms = self._floor_ms()
        last: tuple[int, int] | None = None
        while self._waiting and (floor_ms is None or self._waiting[0][1] <= floor_ms):
            last = self._waiting.popleft()
        if last is not None:
            if last[1] > self._known_until_ms:
                self._known.clear()
            self.in_flight.append((log_end, *last))

    def _floor_ms(self) -> int | None:
        """Return the begin of the first slot that must not count yet; None: all may count."""
        floors = [] if self._revival.floor_ms is None else [self._revival.floor_ms - 1]
        first_ms = self._recalls.first_ms
        # When the wheel is full, nothing more is delivered until a slot counts.
        late_ms = min(self._files.late_ms, self._files.free_ms)
        if first_ms is not None and self._delivered_ms < late_ms:
            floors.append(first_ms)
        return min(floors) // self._precision_ms * self._precision_ms if floors else None

    def stored(self, end: int) -> None:
        """Note that everything before log offset `end` is durable."""
        while self.in_flight and self.in_flight[0][0] <= end:
            _, begin, read_ms = self.in_flight.popleft()
            self._files.advance(read_ms, begin)
