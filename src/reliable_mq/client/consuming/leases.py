"""Leases: messages in the hands of an application that acknowledges each by itself.

    given --> (extended)* --> ended: acknowledged, handed back, or run out --> forgotten

A lease is on one delivery, so that who comes too late ends nobody else's. Pure: the shell says what
time it is, and lets expired deliveries fail.
"""

import heapq

import msgspec

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.errors import InvariantBroken, LeaseLost, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage


class Lease(msgspec.Struct, eq=False):
    """One delivery, the queue it came from, and when it runs out.

    `shown` is what the application has of it: its names may be others.
    """

    message: ReceivedMessage
    shown: ReceivedMessage
    assigned: AssignedQueue
    expires: float


class Leases:
    """The leases of one consumer.

    Invariant: a lease that is here is on a message that is running in its queue, and one message
    has one lease at most.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[MessageQueue, int], Lease] = {}
        self._dues: list[tuple[float, MessageQueue, int]] = []  # some have ended or were extended

    def __len__(self) -> int:
        return len(self._leases)

    def give(
        self,
        assigned: AssignedQueue,
        message: ReceivedMessage,
        expires: float,
        shown: ReceivedMessage | None = None,
    ) -> None:
        """Begin a lease on a message that was just taken from `assigned`."""
        shown = shown or message
        key = (shown.queue, shown.queue_offset)
        self._leases[key] = Lease(message, shown, assigned, expires)
        heapq.heappush(self._dues, (expires, *key))

    def extend(self, message: ReceivedMessage, expires: float) -> None:
        """Let a lease run out at `expires`, sooner or later than before.

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
        """End the leases that have run out, and return them."""
        ended: list[Lease] = []
        while self._dues and self._dues[0][0] <= now:
            _, queue, offset = heapq.heappop(self._dues)
            lease = self._leases.get((queue, offset))
            if lease is not None and lease.expires <= now:
                ended.append(self._leases.pop((queue, offset)))
        return ended

    def next_due(self) -> float | None:
        """Return when to ask for `expired` again; None: there is no lease."""
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
        """Hold the class's invariant."""
        for (_, offset), lease in self._leases.items():
            if not lease.assigned.is_running(offset):
                raise InvariantBroken(f"a lease on message {offset}, which is not running")

    def _find(self, message: ReceivedMessage) -> Lease:
        if not isinstance(message, ReceivedMessage):
            raise UsageError(
                f"what was received is asked for, not a {type(message).__name__}: give messages"
                " one by one, as ack(*messages)"
            )
        lease = self._leases.get((message.queue, message.queue_offset))
        if lease is None or lease.shown is not message:
            raise LeaseLost(
                f"message {message.message_id} is not in your hands any more: its handling took"
                " longer than its lease, it was settled already, or its queue moved to another"
                " member; it may be delivered again"
            )
        return lease
