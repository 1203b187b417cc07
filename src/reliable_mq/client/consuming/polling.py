"""Positions of an application in the queues that it polls. Pure: the caller pulls and commits.

    fetched    messages that were pulled and that no poll has returned yet
    position   of a queue: the offset of the next message that a poll returns
    handled    of a queue: its position when the last poll began

A poll confirms that messages of earlier polls are handled: auto-commit commits only those. A seek
gives the queue a new, empty `AssignedQueue`. A pull in progress still fills the old one, which is
not read any more. So no poll returns a message from before the seek.
"""

from collections.abc import Iterable, Mapping

from reliable_mq.client.consuming.assigned_queue import OFFSET_UNKNOWN, AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage

_OFFSET_MAX = 2**63 - 1


class Positions:
    """For each assigned queue: fetched messages, messages that polls returned, and commits.

    Invariant K4: between polls no message is running. Messages that a poll has returned are
    finished, so the commit offset of an `AssignedQueue` is the position of its queue.

    Args:
        group: the group of the queues; it is polled and not ordered.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._handled: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._turn = 0

    @property
    def queues(self) -> set[MessageQueue]:
        """The assigned queues."""
        return {assigned.queue for assigned in self._group.assigned}

    @property
    def paused(self) -> set[MessageQueue]:
        """The paused queues."""
        return set(self._paused)

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether to fetch more messages of a queue now."""
        return assigned.has_room and assigned.queue not in self._paused

    def poll_begins(self) -> None:
        """Count the messages of earlier polls as handled."""
        self._handled |= self.positions()

    def take_fetched(self, count: int, now: float) -> list[ReceivedMessage]:
        """Return up to `count` fetched messages, in order within each queue; queues take turns."""
        queues = self._group.assigned
        first = self._turn % len(queues) if queues else 0
        taken: list[ReceivedMessage] = []
        for assigned in (*queues[first:], *queues[:first]):
            if len(taken) == count:
                break
            self._turn += 1
            if assigned.has_ready and assigned.queue not in self._paused:
                taken += assigned.take_ready(count - len(taken), now)
        for message in taken:
            self._assigned(message.queue).finish(message.queue_offset)
        return taken

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that a poll returns; None when it is unknown yet.

        Raises:
            UsageError: when the queue is not assigned.
        """
        assigned = self._assigned(queue)
        return assigned.commit_offset if assigned.is_started else None

    def positions(self) -> dict[MessageQueue, int]:
        """Return the known positions of all queues, including revoked queues not given up yet.

        So an application can commit a queue in its callback for revoked queues.
        """
        return {
            assigned.queue: assigned.commit_offset
            for assigned in self._group.all_queues
            if assigned.is_started
        }

    def seek(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        """Set the position of a queue to `offset`, and return the new state of the queue.

        Raises:
            UsageError: when the queue is not assigned, or the offset is negative.
        """
        _check_offset(queue, offset)
        old = self._assigned(queue)
        self._group.leave(queue)
        self._group.forget(old)
        new = self._group.assign(queue)
        new.start_at(offset)
        new.committed_offset = old.committed_offset
        return new

    def move(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        """Set the position of a queue to `offset`, set by a broker; return the queue's new state.

        Earlier handled offsets do not count any more. The brokers' committed offset is unknown
        then, so the next commit is always sent.
        """
        new = self.seek(queue, offset)
        new.committed_offset = OFFSET_UNKNOWN
        self._handled.pop(queue, None)
        return new

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and fetch no messages of these queues; keep those fetched already.

        Raises:
            UsageError: when a queue is not assigned.
        """
        self._paused |= {self._assigned(queue).queue for queue in queues}

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue with paused queues."""
        self._paused -= set(queues)

    def handle(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Count messages before `offsets` as handled, and later ones as not handled.

        Raises:
            UsageError: when a queue is neither assigned nor about to be given up, so that another
                member commits it; or when an offset is negative.
        """
        for queue, offset in offsets.items():
            if self._group.find(queue) is None:
                raise _not_assigned(queue)
            _check_offset(queue, offset)
        self._handled.update(offsets)

    def uncommitted(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the uncommitted part of `offsets`; None: of all handled offsets."""
        return {
            queue: offset
            for queue, offset in (self._handled if offsets is None else offsets).items()
            if (assigned := self._group.find(queue)) is not None
            and assigned.committed_offset != offset
        }

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that was given up."""
        self._handled.pop(queue, None)
        self._paused.discard(queue)

    def invariants(self) -> None:
        """Check the class's invariant, and those of the group."""
        self._group.invariants()
        for assigned in self._group.assigned:
            if assigned.running:
                raise InvariantBroken(f"{assigned.running} messages of {assigned.queue} run")

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        found = self._group.find(queue)
        if found is None or self._group.is_leaving(queue):
            raise _not_assigned(queue)
        return found


def _check_offset(queue: MessageQueue, offset: int) -> None:
    if not isinstance(offset, int) or not 0 <= offset <= _OFFSET_MAX:
        raise UsageError(f"offset {offset!r} of {queue}: it must be from 0 to {_OFFSET_MAX}")


def _not_assigned(queue: MessageQueue) -> UsageError:
    return UsageError(f"{queue} is not assigned to this consumer")
