"""Leases on messages that an application acknowledges one by one.

    given --> (extended)* --> ended: acknowledged, failed, or expired --> forgotten

A lease belongs to one delivery: a late acknowledgement cannot end the lease of a later delivery.
Pure: the caller gives the time, and lets expired deliveries fail.
"""

import heapq

import msgspec

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.errors import InvariantBroken, LeaseLost, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage

_KEPT_MAX = 1000
_OVER = (
    "its handling time is over, so it is delivered again: receive with a longer handling=, or call"
    " extend(message, seconds) before it is over"
)
_SETTLED = "it was settled already (ack, retry or reject), so there is nothing left to do"
_MOVED = (
    "its queue has moved to another member, which gets it again: what its handling did is done"
    " twice, unless your handler sees that"
)
_UNKNOWN = (
    "it was settled long ago, its handling time is over, or another consumer has received it:"
    " settle each message once, at the consumer that has received it, and call"
    " extend(message, seconds) if it takes longer"
)


class Lease(msgspec.Struct, eq=False):
    """A delivery, its queue, and when the lease expires.

    `shown` is the message as the application has it; its names may differ (namespace).
    """

    message: ReceivedMessage
    shown: ReceivedMessage
    assigned: AssignedQueue
    expires: float


def lease_settled(message: ReceivedMessage) -> LeaseLost:
    """Return the error for a message that was settled already."""
    return LeaseLost(f"message {message.message_id} is not yours any more: {_SETTLED}")


class Leases:
    """The leases of one consumer.

    Invariant K5: each lease is on a message that is running in its queue, and each message has at
    most one lease.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[MessageQueue, int], Lease] = {}
        self._dues: list[tuple[float, MessageQueue, int]] = []  # some are outdated
        self._ended: dict[tuple[MessageQueue, int], str] = {}  # why, of the last ones

    def __len__(self) -> int:
        return len(self._leases)

    def begin_lease(
        self,
        assigned: AssignedQueue,
        message: ReceivedMessage,
        expires: float,
        shown: ReceivedMessage | None = None,
    ) -> None:
        """Begin a lease on a message just taken from `assigned`."""
        shown = shown or message
        key = (shown.queue, shown.queue_offset)
        self._leases[key] = Lease(message, shown, assigned, expires)
        self._ended.pop(key, None)
        heapq.heappush(self._dues, (expires, *key))

    def find(self, message: ReceivedMessage) -> Lease:
        """Return the lease on this delivery.

        Raises:
            LeaseLost: when it has ended.
        """
        return self._find(message)

    def extend(self, message: ReceivedMessage, expires: float) -> None:
        """Let a lease expire at `expires`, earlier or later than before.

        Raises:
            LeaseLost: when it has ended.
        """
        self._find(message).expires = expires
        heapq.heappush(self._dues, (expires, message.queue, message.queue_offset))

    def end(self, message: ReceivedMessage) -> Lease:
        """End the lease on this delivery and return it.

        Raises:
            LeaseLost: when it has ended.
        """
        lease = self._find(message)
        self._forget((message.queue, message.queue_offset), _SETTLED)
        return lease

    def expired(self, now: float) -> list[Lease]:
        """End the expired leases, and return them."""
        ended: list[Lease] = []
        while self._dues and self._dues[0][0] <= now:
            _, queue, offset = heapq.heappop(self._dues)
            lease = self._leases.get((queue, offset))
            if lease is not None and lease.expires <= now:
                ended.append(lease)
                self._forget((queue, offset), _OVER)
        return ended

    def next_due(self) -> float | None:
        """Return when to call `expired` again; None when there is no lease."""
        while self._dues:
            due, queue, offset = self._dues[0]
            lease = self._leases.get((queue, offset))
            if lease is not None and lease.expires == due:
                return due
            heapq.heappop(self._dues)
        return None

    def forget(self, assigned: AssignedQueue) -> None:
        """End the leases on messages of a queue that is given back."""
        for key, lease in list(self._leases.items()):
            if lease.assigned is assigned:
                self._forget(key, _MOVED)

    def _forget(self, key: tuple[MessageQueue, int], why: str) -> None:
        """End a lease, and keep why: whoever comes too late is told."""
        del self._leases[key]
        self._ended[key] = why
        if len(self._ended) > _KEPT_MAX:
            del self._ended[next(iter(self._ended))]

    def invariants(self) -> None:
        """Check the class's invariant."""
        for (_, offset), lease in self._leases.items():
            if not lease.assigned.is_running(offset):
                raise InvariantBroken(f"a lease on message {offset}, which is not running")

    def _find(self, message: ReceivedMessage) -> Lease:
        if not isinstance(message, ReceivedMessage):
            raise UsageError(
                f"a received message is needed, not a {type(message).__name__}: give messages"
                " one by one, as ack(*messages)"
            )
        lease = self._leases.get((message.queue, message.queue_offset))
        if lease is None or lease.shown is not message:
            key = (message.queue, message.queue_offset)
            why = _OVER if lease is not None else self._ended.get(key, _UNKNOWN)
            raise LeaseLost(f"message {message.message_id} is not yours any more: {why}")
        return lease
