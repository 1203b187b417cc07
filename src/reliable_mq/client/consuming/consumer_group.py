"""A consumer group as one member sees it: the queues it was assigned and what they hold.

The flows that read, lock, commit and settle (`pulling`, `queue_locks`, `offsets`, `settling`,
`assignment`) all work on one of these.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from reliable_mq.client.connecting.namespace import NO_NAMESPACE, Namespace
from reliable_mq.client.connecting.routes import RouteTable
from reliable_mq.client.consuming.allocation import Allocation, Configured, MachineRoom, average
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.local_offsets import LocalOffsets
from reliable_mq.client.consuming.subscription import Sql, Subscription, tags_of
from reliable_mq.client.sending.producer import Producer
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage


class ConsumerGroup:
    """One member's view of its group.

    Invariant: a queue is assigned or leaving, never both, and has one `AssignedQueue` in all.

    Args:
        subscription: what the group reads.
        version: milliseconds since the epoch when the subscription was made; brokers keep the
            newest.
        client_id: this member's name in the group.
        polled: whether the application takes messages itself and says what is committed: nothing
            is, by the way, and there are no retries.
        is_member: whether brokers know this client as a member, and what its group wants.
        namespace: how topics and groups are called outside; all names in here are whole.
    """

    def __init__(
        self,
        subscription: Subscription,
        version: int,
        client_id: str,
        *,
        settings: ClientSettings,
        routes: RouteTable,
        producer: Producer,
        polled: bool = False,
        is_member: bool = True,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self.subscription = subscription
        self.namespace = namespace
        self.version = version
        self.client_id = client_id
        self.settings = settings
        self.routes = routes
        self.producer = producer
        self.name = subscription.group
        self.polled = polled
        self.is_member = is_member
        #: of a group that broadcasts: where it has come to in each queue
        self.local_offsets: LocalOffsets | None = None
        self.filters = subscription.all_topics() if self.has_retries else dict(subscription.topics)
        self.tags = {topic: tags_of(wanted) for topic, wanted in self.filters.items()}
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        self._turns: deque[AssignedQueue] = deque()

    @property
    def assigned(self) -> list[AssignedQueue]:
        """The queues that this member reads."""
        return list(self._assigned.values())

    @property
    def all_queues(self) -> list[AssignedQueue]:
        """The queues that this member reads, and those it has not given back yet."""
        return [*self._assigned.values(), *self._leaving.values()]

    @property
    def has_retries(self) -> bool:
        """Whether messages are sent back to the broker, which keeps the group's offsets."""
        return not (self.polled or self.subscription.broadcasting)

    def also_read(self, topic: str, wanted: str | Sql) -> None:
        """Read another topic, too."""
        self.filters[topic] = wanted
        self.tags[topic] = tags_of(wanted)

    def allocation_of(self, topic: str) -> Allocation:
        """Return how the members share `topic`.

        The retry topic is the group's own and is at every broker: its queues are shared evenly
        where the topics' are given by hand or belong to rooms, or nobody would read some of them.
        """
        if self.subscription.broadcasting:
            return average
        allocation = self.subscription.allocation
        partial = isinstance(allocation, Configured | MachineRoom)
        return average if partial and topic == self.subscription.retry_topic else allocation

    def assigned_of(self, topic: str) -> set[MessageQueue]:
        """Return the assigned queues of `topic`."""
        return {queue for queue in self._assigned if queue.topic == topic}

    def is_leaving(self, queue: MessageQueue) -> bool:
        """Whether `queue` was taken away and is not given back yet."""
        return queue in self._leaving

    def find(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return what is known of `queue`, assigned or leaving."""
        return self._assigned.get(queue) or self._leaving.get(queue)

    def assign(self, queue: MessageQueue) -> AssignedQueue:
        """Begin to read `queue`; it starts once it is locked, if need be, and has an offset."""
        if self.find(queue) is not None:
            raise InvariantBroken(f"{queue} is assigned twice")
        ordered = self.subscription.ordered
        shared = self.has_retries and queue.topic != self.subscription.retry_topic
        assigned = AssignedQueue(
            queue,
            ordered=ordered,
            needs_lock=ordered and shared,
            settings=self.settings,
        )
        self._assigned[queue] = assigned
        self._turns.append(assigned)
        return assigned

    def leave(self, queue: MessageQueue) -> AssignedQueue:
        """Start nothing more of `queue`; it is given back when nothing of it runs."""
        assigned = self._assigned.pop(queue)
        assigned.leaving = True
        self._leaving[queue] = assigned
        self._turns.remove(assigned)
        return assigned

    def forget(self, assigned: AssignedQueue) -> None:
        """Drop a queue that was given back."""
        del self._leaving[assigned.queue]

    def take(self, now: float, count: int | None = None) -> list[ReceivedMessage]:
        """Return the messages of the next handler call, none when nothing is ready.

        At most `count`, None: a batch.

        They are of one topic, and each of another ordering key. Queues take turns, so that a busy
        one does not starve the others.
        """
        taken: list[ReceivedMessage] = []
        for _ in range(len(self._turns)):
            room = (count or self.subscription.batch) - len(taken)
            if not room:
                break
            assigned = self._turns[0]
            self._turns.rotate(-1)
            if assigned.has_ready:
                taken += assigned.take(room, now, taken[0].topic if taken else None)
        return taken

    @property
    def ready(self) -> int:
        """How many messages could be taken, locks aside."""
        return sum(assigned.ready for assigned in self._turns)

    def wake(self, now: float) -> float | None:
        """Make held messages ready whose time has come; return when the next one is due."""
        for assigned in self._assigned.values():
            assigned.wake(now)
        dues = [due for q in self._assigned.values() if (due := q.next_due()) is not None]
        return min(dues, default=None)

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Mistrust the locks and commits of brokers whose connection was lost.

        A broker that restarts has forgotten who locked what, and maybe the newest offsets.
        """
        names = set(broker_names)
        for assigned in self.all_queues:
            if assigned.queue.broker_name in names:
                assigned.lose_lock()
                assigned.committed_offset = -1

    def by_broker(
        self, queues: Iterable[AssignedQueue]
    ) -> Iterator[tuple[str, list[AssignedQueue]]]:
        """Yield (broker name, its queues)."""
        table: dict[str, list[AssignedQueue]] = {}
        for assigned in queues:
            table.setdefault(assigned.queue.broker_name, []).append(assigned)
        yield from table.items()

    def master_of(self, broker_name: str) -> str | None:
        """Return the address of the broker's master, when a route names one."""
        broker = self.routes.broker(broker_name)
        return broker.master if broker is not None else None

    def invariants(self) -> None:
        """Hold the class's invariant, and those of each queue."""
        if self._assigned.keys() & self._leaving.keys():
            raise InvariantBroken("a queue is assigned and leaving")
        if sorted(q.queue for q in self._turns) != sorted(self._assigned):
            raise InvariantBroken("the turns and the assigned queues differ")
        for assigned in self.all_queues:
            assigned.invariants()
