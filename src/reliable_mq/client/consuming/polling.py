"""How far an application has come in the queues that it polls. Pure: the shell pulls and commits.

    fetched    what was pulled and no poll has returned yet
    position   of a queue: the next message that a poll returns
    handled    of a queue: where its position was when the last poll began

Whoever polls again has handled what the polls before returned: only that is committed by itself.
A seek gives a queue a new, empty `AssignedQueue`; what a pull under way brings still goes to the
old one, which nobody reads any more, so that no message of before the seek is returned after it.
"""

from collections.abc import Iterable, Mapping

from reliable_mq.client.consuming.assigned_queue import OFFSET_UNKNOWN, AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage

_OFFSET_MAX = 2**63 - 1


class Positions:
    """What was fetched of each assigned queue, what polls returned, and what may be committed.

    Invariant: no message is in the hands of a poll between polls: what one returned is finished,
    so that the commit offset of an `AssignedQueue` is the position of its queue.

    Args:
        group: whose queues they are; it is polled and takes nothing in order.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._handled: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._turn = 0

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that are assigned."""
        return {assigned.queue for assigned in self._group.assigned}

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues that are paused."""
        return set(self._paused)

    def may_pull(self, assigned: AssignedQueue) -> bool:
        """Whether more of a queue should be fetched now."""
        return assigned.has_room and assigned.queue not in self._paused

    def poll_begins(self) -> None:
        """Take what the polls before returned for handled."""
        self._handled |= self.positions()

    def take(self, count: int, now: float) -> list[ReceivedMessage]:
        """Return up to `count` fetched messages, of each queue in its order; queues take turns."""
        queues = self._group.assigned
        first = self._turn % len(queues) if queues else 0
        taken: list[ReceivedMessage] = []
        for assigned in (*queues[first:], *queues[:first]):
            if len(taken) == count:
                break
            self._turn += 1
            if assigned.has_ready and assigned.queue not in self._paused:
                taken += assigned.take(count - len(taken), now)
        for message in taken:
            self._assigned(message.queue).finish(message.queue_offset)
        return taken

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that a poll returns; None: it is not known yet.

        Raises:
            UsageError: when the queue is not assigned.
        """
        assigned = self._assigned(queue)
        return assigned.commit_offset if assigned.is_started else None

    def positions(self) -> dict[MessageQueue, int]:
        """Return the position of every queue where it is known, also of those still to be given up.

        Else an application that commits when it hears that a queue goes would commit nothing of it.
        """
        return {
            assigned.queue: assigned.commit_offset
            for assigned in self._group.all_queues
            if assigned.is_started
        }

    def seek(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        """Let the next poll return `offset` of a queue, and return what it is fetched into.

        Raises:
            UsageError: when the queue is not assigned, or the offset negative.
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
        """Seek `offset`, as somebody else wants it, and return what the queue is fetched into.

        What was handled before is none of the group's offsets any more, and what brokers have as
        such is not known: they are told again with what is handled from now on.
        """
        new = self.seek(queue, offset)
        new.committed_offset = OFFSET_UNKNOWN
        self._handled.pop(queue, None)
        return new

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of these queues and fetch no more; what was fetched is kept.

        Raises:
            UsageError: when one is not assigned.
        """
        self._paused |= {self._assigned(queue).queue for queue in queues}

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with queues that were paused."""
        self._paused -= set(queues)

    def handle(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Take what lies before `offsets` for handled, and what lies behind them for not.

        Raises:
            UsageError: when a queue is neither assigned nor still to be given up, so that somebody
                else commits it; or an offset is negative.
        """
        for queue, offset in offsets.items():
            if self._group.find(queue) is None:
                raise _not_assigned(queue)
            _check_offset(queue, offset)
        self._handled.update(offsets)

    def uncommitted(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Return what of `offsets`, None: of what is handled, brokers have not been told."""
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
        """Hold the class's invariant, and those of the group."""
        self._group.invariants()
        for assigned in self._group.assigned:
            if assigned.running:
                raise InvariantBroken(f"{assigned.running} messages of {assigned.queue} hang")

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        found = self._group.find(queue)
        if found is None or self._group.is_leaving(queue):
            raise _not_assigned(queue)
        return found


def _check_offset(queue: MessageQueue, offset: int) -> None:
    if not isinstance(offset, int) or not 0 <= offset <= _OFFSET_MAX:
        raise UsageError(
            f"offset {offset!r} of {queue}: there is none below 0 or above {_OFFSET_MAX}"
        )


def _not_assigned(queue: MessageQueue) -> UsageError:
    return UsageError(f"{queue} is not assigned to this consumer")
