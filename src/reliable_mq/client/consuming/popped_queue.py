"""The popped and unfinished messages of one queue, in a consumer by the message.

Many members pop from one queue, so nothing is committed here. Each message has a lease, which its
broker keeps, and a handle to end or to extend it. When the lease ends, the broker delivers the
message again, to any member. It must not know brokers and clocks.
"""

import heapq
import math
from collections.abc import Callable, Sequence

import msgspec

from reliable_mq.client.consuming.assigned_queue import AssignedQueue, MessageStage
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.pop_handle import PopHandle


class PopLease(msgspec.Struct, eq=False):
    """The lease of a popped message.

    Attributes:
        message: the message.
        topic: the topic that was popped; that of the stored message may be a retry topic.
        handle: the newest handle.
        expires: when the broker delivers it again, on the lease clock.
        renew_at: when the lease is to be extended, on the lease clock.
        is_changing: whether a broker is asked for another end; its answer has the next handle.
        is_lost: whether the lease ended before its message did.
    """

    message: ReceivedMessage
    topic: str
    handle: PopHandle
    expires: float
    renew_at: float
    is_changing: bool = False
    is_lost: bool = False


class PoppedQueue(AssignedQueue):
    """The popped messages of one queue of a topic, or of its retry topic.

    K13: each unfinished message has a lease. No message begins after the end of its lease.

    Args:
        queue: the queue in which the messages are stored.
        settings: the flow control limits.
        budget: shared by all queues of the client; None: this queue has the whole budget.
        acknowledge: is called with the lease of each message that was handled.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        settings: ClientSettings,
        acknowledge: Callable[[PopLease], None],
        budget: FlowBudget | None = None,
    ) -> None:
        super().__init__(queue, ordered=False, needs_lock=False, settings=settings, budget=budget)
        self.next_offset = self.committed_offset = 0
        self.leases: dict[int, PopLease] = {}
        self._acknowledge = acknowledge
        self._earliest_end = math.inf

    @property
    def is_started(self) -> bool:
        """Whether there is an offset to read from: never, the broker knows it."""
        return False

    @property
    def commit_offset(self) -> int:
        """The offset to commit: none, the broker commits what it hands out."""
        return 0

    @property
    def held(self) -> int:
        """Number of messages that wait for another attempt here."""
        return len(self._held)

    def add_popped(self, leases: Sequence[PopLease]) -> None:
        """Add popped messages. A message that is here already only gets the newer lease."""
        new = []
        for lease in leases:
            offset = lease.message.queue_offset
            if offset not in self.leases:
                new.append(lease.message)
            self.leases[offset] = lease
            self._earliest_end = min(self._earliest_end, lease.expires)
        self.add_pulled(new, 0)
        self._offsets.clear()  # they serve commits only

    def take_ready(self, count: int, now: float, topic: str | None = None) -> list[ReceivedMessage]:
        """Return up to `count` ready messages for a handler call; `now` on the lease clock."""
        if now >= self._earliest_end:
            for offset in self.expired(now):
                self.drop(offset)
        return super().take_ready(count, now, topic)

    def expired(self, now: float) -> list[int]:
        """Return the messages that no handler has and whose lease has ended."""
        leases = self.leases.items()
        ended = [at for at, lease in leases if lease.expires <= now and not self.is_running(at)]
        gone = set(ended)
        self._earliest_end = min(
            (lease.expires for at, lease in leases if at not in gone and lease.expires > now),
            default=math.inf,
        )
        return ended

    def finish(self, offset: int) -> None:
        """Remove a running message, which is to be acknowledged."""
        super().finish(offset)
        self._acknowledge(self.leases.pop(offset))

    def postpone(self, offset: int, until: float, *, counts: bool) -> None:
        """Make a running message ready again at `until`; as the next attempt when it `counts`."""
        super().postpone(offset, until, counts=counts)
        self.leases[offset].message = self._entries[offset].message
        if self.wake_reader is not None:
            self.wake_reader()

    def drop(self, offset: int) -> PopLease:
        """Remove a message that is delivered again, or was already; return its lease."""
        lease = self.leases.pop(offset)
        entry = self._entries.pop(offset)
        if entry.stage is MessageStage.RUNNING:
            self._running -= 1
        elif entry.stage is MessageStage.READY:
            self.ready_offsets.remove(offset)
        else:
            self._held = [(due, at) for due, at in self._held if at != offset]
            heapq.heapify(self._held)
        self._shrink(entry)
        return lease

    def invariants(self) -> None:
        """Check K13 and the invariants of a queue.

        Raises:
            InvariantBroken: when one does not hold; a bug.
        """
        super().invariants()
        if self.leases.keys() != self._entries.keys():
            raise InvariantBroken("K13: a message without a lease, or a lease without a message")
