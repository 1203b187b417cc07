"""Messages that wait a moment for company: which leave in one request, and when.

Receives letters and the queues that their keys bind them to; hands on batches. Refuses to know who
waits for a letter, and what time it is.

Each topic has a row of letters that any queue may take, of which several batches may be under way,
and one row for each queue that an ordering key leads to. Of such a row one batch is under way at a
time, because what is sent side by side may be stored in any order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.client.sending.outgoing import PreparedMessage
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue


class LingeringMessage(msgspec.Struct, eq=False):
    """A letter on its way, and whatever its sender wants to know it again by."""

    letter: PreparedMessage
    owner: Any
    since: float = 0.0


class LingerQueue(msgspec.Struct, eq=False):
    """Letters that may share a request, the oldest first.

    `hurried` of them, from the front, leave as soon as they may.
    """

    topic: str
    queue: MessageQueue | None
    parcels: deque[LingeringMessage] = msgspec.field(default_factory=deque)
    size: int = 0
    hurried: int = 0
    under_way: int = 0


class SendBatch(msgspec.Struct, eq=False):
    """What leaves in one request."""

    row: LingerQueue
    parcels: list[LingeringMessage]

    @property
    def letters(self) -> list[PreparedMessage]:
        """What is in it."""
        return [parcel.letter for parcel in self.parcels]


class LingerQueues:
    """All letters of one batcher that wait.

    Invariant: of a queue that an ordering key leads to at most one batch is under way; a row is
    here as long as a letter of it waits or is under way.

    Args:
        count_max: letters in a batch.
        size_max: bytes in a batch; a larger letter goes alone.
        linger: seconds that a letter waits for others.
        under_way_max: batches under way of a topic, of letters without a key.
        goes_alone: whether a letter cannot share a request for what it is.
    """

    def __init__(
        self,
        *,
        count_max: int,
        size_max: int,
        linger: float,
        under_way_max: int,
        goes_alone: Callable[[PreparedMessage], bool],
    ) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._linger = linger
        self._under_way_max = under_way_max
        self._goes_alone = goes_alone
        self._rows: dict[tuple[str, MessageQueue | None], LingerQueue] = {}

    def add(
        self,
        parcel: LingeringMessage,
        queue: MessageQueue | None,
        now: float,
        *,
        hurried: bool = False,
    ) -> bool:
        """Let a letter wait in its row; return whether something need wait no longer.

        Args:
            parcel: the letter.
            queue: the queue of its ordering key; None when it may go to any of its topic.
            now: the time, in seconds.
            hurried: whether it waits for nobody.
        """
        topic = parcel.letter.message.topic
        row = self._rows.get((topic, queue))
        if row is None:
            row = self._rows[topic, queue] = LingerQueue(topic, queue)
        parcel.since = now
        row.parcels.append(parcel)
        row.size += parcel.letter.batch_size
        if hurried:
            row.hurried = len(row.parcels)
        return row.under_way < self._limit(row) and self._is_ready(row)

    def hurry(self) -> None:
        """Let everything that waits leave as soon as it may."""
        for row in self._rows.values():
            row.hurried = len(row.parcels)

    def departures(self, now: float) -> list[SendBatch]:
        """Take out the batches that leave now."""
        batches: list[SendBatch] = []
        for row in self._rows.values():
            while self._may_leave(row, now):
                row.under_way += 1
                batches.append(self._take(row))
        return batches

    def next_departure(self) -> float | None:
        """Return when a batch leaves next if nothing happens before; None when none does."""
        times = [
            row.parcels[0].since + self._linger
            for row in self._rows.values()
            if row.parcels and row.under_way < self._limit(row)
        ]
        return min(times, default=None)

    def ended(self, batch: SendBatch, *, failed: bool) -> list[LingeringMessage]:
        """Take in what became of a batch; return what must not be sent behind one that failed."""
        row = batch.row
        row.under_way -= 1
        held_back = self._emptied(row) if failed and row.queue is not None else []
        self._drop_if_empty(row)
        return held_back

    def give_up(self) -> list[LingeringMessage]:
        """Take out everything that waits: nothing more will leave."""
        waiting: list[LingeringMessage] = []
        for row in list(self._rows.values()):
            waiting += self._emptied(row)
            self._drop_if_empty(row)
        return waiting

    def invariants(self) -> None:
        """Hold the class's invariant.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        for row in self._rows.values():
            if row.under_way > self._limit(row) or not (row.parcels or row.under_way):
                raise InvariantBroken(f"{row.under_way} batches of {row.queue} are under way")
            if row.size != sum(parcel.letter.batch_size for parcel in row.parcels):
                raise InvariantBroken(f"the row of {row.queue} has lost count of its bytes")

    def _emptied(self, row: LingerQueue) -> list[LingeringMessage]:
        waiting = list(row.parcels)
        row.parcels.clear()
        row.size = row.hurried = 0
        return waiting

    def _drop_if_empty(self, row: LingerQueue) -> None:
        if not row.parcels and not row.under_way:
            del self._rows[row.topic, row.queue]

    def _limit(self, row: LingerQueue) -> int:
        return self._under_way_max if row.queue is None else 1

    def _may_leave(self, row: LingerQueue, now: float) -> bool:
        if not row.parcels or row.under_way >= self._limit(row):
            return False
        return row.parcels[0].since + self._linger <= now or self._is_ready(row)

    def _is_ready(self, row: LingerQueue) -> bool:
        return (
            row.hurried > 0
            or len(row.parcels) >= self._count_max
            or row.size >= self._size_max
            or self._goes_alone(row.parcels[0].letter)
        )

    def _take(self, row: LingerQueue) -> SendBatch:
        batch = SendBatch(row, [])
        size = 0
        while row.parcels and len(batch.parcels) < self._count_max:
            letter = row.parcels[0].letter
            alone = self._goes_alone(letter)
            if batch.parcels and (alone or size + letter.batch_size > self._size_max):
                break
            batch.parcels.append(row.parcels.popleft())
            size += letter.batch_size
            if alone:
                break
        row.size -= size
        row.hurried = max(0, row.hurried - len(batch.parcels))
        return batch
