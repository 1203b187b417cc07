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


class Lease(msgspec.Struct, eq=False):
    """A delivery, its queue, and when the lease expires.

    `shown` is the message as the application has it; its names may differ (namespace).
    """

    message: ReceivedMessage
    shown: ReceivedMessage
    assigned: AssignedQueue
    expires: float


class Leases:
    """The leases of one consumer.

    Invariant K5: each lease is on a message that is running in its queue, and each message has at
    most one lease.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[MessageQueue, int], Lease] = {}
        self._dues: list[tuple[float, MessageQueue, int]] = []  # some are outdated

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
        del self._leases[message.queue, message.queue_offset]
        return lease

    def expired(self, now: float) -> list[Lease]:
        """End the expired leases, and return them."""
        ended: list[Lease] = []
        while self._dues and self._dues[0][0] <= now:
            _, queue, offset = heapq.heappop(self._dues)
            lease = self._leases.get((queue, offset))
            if lease is not None and lease.expires <= now:
                ended.append(self._leases.pop((queue, offset)))
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
                del self._leases[key]

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
            raise LeaseLost(
                f"the lease of message {message.message_id} has ended: its handling took"
                " longer than the lease, it was settled already, or its queue moved to another"
                " member; it may be delivered again"
            )
        return lease
