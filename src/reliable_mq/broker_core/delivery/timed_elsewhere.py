"""The timed messages of a slave that stands in for its master, in the order in which they are due.

Receives what the slave knows of its master's timers. Returns the messages that are due, and notes
what is delivered. A slave has no timer wheel: it reads the queue of timed messages in slices, and
keeps a number for each that waits. Its log does not grow meanwhile.
A message beyond the roll window waits here as any other one.
"""

import heapq
from collections import Counter
from collections.abc import Iterator

from reliable_mq.broker_core.delivery.followed_timers import FollowedTimers
from reliable_mq.broker_core.delivery.timed_message import (
    TimedIdentity,
    TimedMessage,
    message_when_due,
    read_timed,
    search_deliveries,
)
from reliable_mq.broker_core.names import TIMER_TOPIC, is_revive_topic
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.message_store import MessageStore

_OFFSET_BITS = 40  # of a number: its due time is in the bits above
_READ_AT_ONCE = 500
_OFFSETS = (1 << _OFFSET_BITS) - 1


class TimedElsewhere:
    """The timed messages that were not delivered when the master was lost.

    Args:
        store: it has them.
        followed: what is known of the master's timers; it notes the progress.
        precision_ms: duration of a slot, in milliseconds.
        recalls_within_topic: see `Timers`.
    """

    def __init__(
        self,
        store: MessageStore,
        followed: FollowedTimers,
        *,
        precision_ms: int,
        recalls_within_topic: bool,
    ) -> None:
        self._store = store
        self._followed = followed
        self._precision_ms = precision_ms
        self._recalls_within_topic = recalls_within_topic
        self._waiting: list[int] = []  # a heap of due times and queue offsets
        self._deleted: dict[tuple[int, str], bool] = {}  # recalls, and whether they were met
        self._known: Counter[TimedIdentity] = Counter()  # deliveries of the master
        self._end = 0  # of the queue of timed messages
        self._reading = self._read_all()
        self.is_read = False

    def _read_all(self) -> Iterator[None]:
        """Read what waits, a slice at a time."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        done = self._followed.progress()
        for _ in search_deliveries(self._store, done.delivered_end, self._known):
            yield
        self._end = queue.end
        for count, offset in enumerate(range(queue.first, self._end), 1):
            timed = read_timed(self._store.reader.message(queue, offset), self._precision_ms)
            is_own = timed is not None and is_revive_topic(timed.topic)  # the master's notes
            if (
                timed is not None
                and not is_own
                and not (offset < done.done_before and timed.due_ms <= done.done_ms)
            ):
                self._put(timed, offset)
            if count % _READ_AT_ONCE == 0:
                yield

    def _put(self, timed: TimedMessage, offset: int) -> None:
        if timed.deleted_key:
            self._deleted[timed.out_ms, self._recalled(timed.topic, timed.deleted_key)] = False
        else:
            heapq.heappush(self._waiting, timed.due_ms << _OFFSET_BITS | offset)

    def _recalled(self, topic: str, key: str) -> str:
        return f"{topic}\0{key}" if self._recalls_within_topic else key

    def take(self, now_ms: int, most: int) -> list[tuple[int, StoredMessage]]:
        """Return the due messages with their numbers, which grow; none until all are read."""
        found: list[tuple[int, StoredMessage]] = []
        if not self.is_read:
            self.is_read = next(self._reading, self) is self
            return found
        while self._waiting and self._waiting[0] >> _OFFSET_BITS <= now_ms and len(found) < most:
            number = heapq.heappop(self._waiting)
            message = self._message(number & _OFFSETS, now_ms)
            if message is not None:
                found.append((number, message))
        return found

    def _message(self, offset: int, now_ms: int) -> StoredMessage | None:
        """Return a message as its consumers get it; None: it was recalled, or is delivered."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None or offset < queue.first:
            return None
        timed = read_timed(self._store.reader.message(queue, offset), self._precision_ms)
        if timed is None:
            return None
        recalls = [(timed.out_ms, self._recalled(timed.topic, key)) for key in timed.own_keys]
        if met := [each for each in recalls if each in self._deleted]:
            self._deleted.update(dict.fromkeys(met, True))
            return None
        identity = timed.identity(is_roll=False)
        if self._known[identity] > 0:
            self._known[identity] -= 1
            return None
        return message_when_due(timed, now_ms, now_ms, is_roll=False)

    def done(self, first: int | None, now_ms: int) -> None:
        """Note what is delivered: everything due before the first message that is on its way.

        Args:
            first: the number of that message; None: none is.
            now_ms: the time.
        """
        if not self.is_read or not self._end:
            return
        first = min([*([] if first is None else [first]), *self._waiting[:1]], default=None)
        done_ms = now_ms if first is None else min(now_ms, (first >> _OFFSET_BITS) - 1)
        self._followed.delivered_elsewhere(self._end, done_ms)
