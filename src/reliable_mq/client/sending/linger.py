"""Decides which waiting messages share a request, and when it is sent.

It receives prepared messages and the queues of their ordering keys, and returns batches. It must
not know who sent a message, or read a clock.

Each topic has one row of messages without a key: several of its batches may be in flight. Each
queue that an ordering key selects has a row of its own, with one batch in flight at a time.
Concurrent requests for it might be stored in any order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.client.sending.outgoing import PreparedMessage
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue


class LingeringMessage(msgspec.Struct, eq=False):
    """A prepared message that waits, and an object by which its sender recognizes it."""

    prepared: PreparedMessage
    owner: Any
    since: float = 0.0


class LingerQueue(msgspec.Struct, eq=False):
    """Waiting messages that may share a request (a row), the oldest first.

    The first `urgent_count` of them are sent as soon as possible.
    """

    topic: str
    queue: MessageQueue | None
    waiting: deque[LingeringMessage] = msgspec.field(default_factory=deque)
    size: int = 0
    urgent_count: int = 0
    under_way: int = 0


class SendBatch(msgspec.Struct, eq=False):
    """The messages of one request."""

    row: LingerQueue
    waiting: list[LingeringMessage]

    @property
    def prepared(self) -> list[PreparedMessage]:
        """Its prepared messages."""
        return [waiting.prepared for waiting in self.waiting]


class LingerQueues:
    """All waiting messages of one batcher.

    Invariant C6: a queue selected by an ordering key has at most one batch in flight. A row exists
    as long as one of its messages waits or is in flight.

    Args:
        count_max: maximum messages in a batch.
        size_max: maximum bytes in a batch; a larger message is sent alone.
        linger: seconds that a message waits for others.
        under_way_max: maximum batches in flight per topic, of messages without a key.
        is_sent_alone: returns whether a message of this kind cannot be in a batch.
    """

    def __init__(
        self,
        *,
        count_max: int,
        size_max: int,
        linger: float,
        under_way_max: int,
        is_sent_alone: Callable[[PreparedMessage], bool],
    ) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._linger = linger
        self._under_way_max = under_way_max
        self._is_sent_alone = is_sent_alone
        self._rows: dict[tuple[str, MessageQueue | None], LingerQueue] = {}

    def add(
        self,
        waiting: LingeringMessage,
        queue: MessageQueue | None,
        now: float,
        *,
        is_urgent: bool = False,
    ) -> bool:
        """Add a message to its row; return whether a batch may be sent now.

        Args:
            waiting: the message.
            queue: the queue of its ordering key; None when any queue of its topic may take it.
            now: the time, in seconds.
            is_urgent: whether it is sent without waiting for others.
        """
        topic = waiting.prepared.message.topic
        row = self._rows.get((topic, queue))
        if row is None:
            row = self._rows[topic, queue] = LingerQueue(topic, queue)
        waiting.since = now
        row.waiting.append(waiting)
        row.size += waiting.prepared.batch_size
        if is_urgent:
            row.urgent_count = len(row.waiting)
        return row.under_way < self._limit(row) and self._is_ready(row)

    def send_soon(self) -> None:
        """Send all waiting messages as soon as possible."""
        for row in self._rows.values():
            row.urgent_count = len(row.waiting)

    def take_due_batches(self, now: float) -> list[SendBatch]:
        """Remove and return the batches to send now."""
        batches: list[SendBatch] = []
        for row in self._rows.values():
            while self._may_leave(row, now):
                row.under_way += 1
                batches.append(self._take(row))
        return batches

    def next_send_time(self) -> float | None:
        """Return when the next batch is due, if nothing happens before; None when none is."""
        times = [
            row.waiting[0].since + self._linger
            for row in self._rows.values()
            if row.waiting and row.under_way < self._limit(row)
        ]
        return min(times, default=None)

    def end_batch(self, batch: SendBatch, *, failed: bool) -> list[LingeringMessage]:
        """Note a batch's end. If it failed, return the waiting messages that must not follow."""
        row = batch.row
        row.under_way -= 1
        held_back = self._emptied(row) if failed and row.queue is not None else []
        self._drop_if_empty(row)
        return held_back

    def give_up(self) -> list[LingeringMessage]:
        """Remove and return all waiting messages: nothing more will be sent."""
        waiting: list[LingeringMessage] = []
        for row in list(self._rows.values()):
            waiting += self._emptied(row)
            self._drop_if_empty(row)
        return waiting

    def invariants(self) -> None:
        """Check the class's invariant.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        for row in self._rows.values():
            if row.under_way > self._limit(row) or not (row.waiting or row.under_way):
                raise InvariantBroken(f"{row.under_way} batches of {row.queue} are under way")
            if row.size != sum(waiting.prepared.batch_size for waiting in row.waiting):
                raise InvariantBroken(f"the row of {row.queue} has a wrong number of bytes")

    def _emptied(self, row: LingerQueue) -> list[LingeringMessage]:
        waiting = list(row.waiting)
        row.waiting.clear()
        row.size = row.urgent_count = 0
        return waiting

    def _drop_if_empty(self, row: LingerQueue) -> None:
        if not row.waiting and not row.under_way:
            del self._rows[row.topic, row.queue]

    def _limit(self, row: LingerQueue) -> int:
        return self._under_way_max if row.queue is None else 1

    def _may_leave(self, row: LingerQueue, now: float) -> bool:
        if not row.waiting or row.under_way >= self._limit(row):
            return False
        return row.waiting[0].since + self._linger <= now or self._is_ready(row)

    def _is_ready(self, row: LingerQueue) -> bool:
        return (
            row.urgent_count > 0
            or len(row.waiting) >= self._count_max
            or row.size >= self._size_max
            or self._is_sent_alone(row.waiting[0].prepared)
        )

    def _take(self, row: LingerQueue) -> SendBatch:
        batch = SendBatch(row, [])
        size = 0
        while row.waiting and len(batch.waiting) < self._count_max:
            prepared = row.waiting[0].prepared
            alone = self._is_sent_alone(prepared)
            if batch.waiting and (alone or size + prepared.batch_size > self._size_max):
                break
            batch.waiting.append(row.waiting.popleft())
            size += prepared.batch_size
            if alone:
                break
        row.size -= size
        row.urgent_count = max(0, row.urgent_count - len(batch.waiting))
        return batch
