"""A consumer group as one member sees it: the queues it was assigned and what they hold.

The flows that read, lock, commit and settle (`pulling`, `queue_locks`, `offsets`, `settling`,
`assignment`) all work on one of these.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reliable_mq.client.connecting.namespace import NO_NAMESPACE, Namespace
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.allocation import Allocation, Configured, MachineRoom, average
from reliable_mq.client.consuming.assigned_queue import OFFSET_UNKNOWN, AssignedQueue
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.local_offsets import LocalOffsets
from reliable_mq.client.consuming.offset_tables import OffsetTables
from reliable_mq.client.consuming.rates import Rates
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import tags_of


class QueueLag(NamedTuple):
    """How far a group is behind in one queue, as the member knows that reads it.

    Attributes:
        behind: messages between the offset up to which everything is finished and the end; those
            count, too, that tags or an expression pass over.
        end_offset: the end of the queue, as a broker told with the last pull.
        age: seconds since it told that. A pull that finds nothing takes up to 15 s; while a queue
            is paused, or full, nobody asks.
    """

    behind: int
    end_offset: int
    age: float


class ConsumerGroup:
    """One member's view of its group.

    Invariant: a queue is assigned or leaving, never both, and has one `AssignedQueue` in all.

    Args:
        subscription: what the group reads.
        version: milliseconds since the epoch when the subscription was made; brokers keep the
            newest.
        client_id: this member's name in the group.
        settings: limits and intervals.
        routes: where the topics are.
        producer: sends back, and dead letters.
        budget: the memory that all queues of the client share; None: the group has its own.
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
        routes: RouteCache,
        producer: SendFlows,
        budget: FlowBudget | None = None,
        polled: bool = False,
        is_member: bool = True,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self.subscription = subscription
        self.namespace = namespace
        self.version = version
        self.started_ms = version
        self.client_id = client_id
        self.settings = settings
        self.routes = routes
        self.producer = producer
        self.name = subscription.group
        self.polled = polled
        self.is_member = is_member
        #: takes what is committed to brokers
        self.offset_tables = OffsetTables(self.name, settings.request_timeout_seconds)
        #: of a group that broadcasts: where it has come to in each queue
        self.local_offsets: LocalOffsets | None = None
        self.filters = subscription.all_topics() if self.has_retries else dict(subscription.topics)
        self.tags = {topic: tags_of(wanted) for topic, wanted in self.filters.items()}
        #: how fast messages are pulled and handled, for administrators
        self.rates = Rates()
        self.is_unheard = False  # a broker does not know the subscription, or an older one
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        self._busy: deque[AssignedQueue] = deque()  # those with ready messages, at the last look
        self._takes = 0  # since that
        self._budget = budget or FlowBudget(settings.held_total_bytes_max)
        self._all_paused = False
        self._paused: set[MessageQueue] = set()

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
            budget=self._budget,
        )
        assigned.paused = self._all_paused or queue in self._paused
        self._assigned[queue] = assigned
        return assigned

    def leave(self, queue: MessageQueue) -> AssignedQueue:
        """Start nothing more of `queue`; it is given back when nothing of it runs."""
        assigned = self._assigned.pop(queue)
        assigned.leaving = True
        self._leaving[queue] = assigned
        return assigned

    def forget(self, assigned: AssignedQueue) -> None:
        """Drop a queue that was given back."""
        del self._leaving[assigned.queue]
        assigned.release()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start nothing more of `queues`, or of any, until `resume`; also when they come later."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)
        self._tell_paused()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with `queues`, or with all that were paused in whatever way."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self._tell_paused()

    def lag(self, now: float) -> dict[MessageQueue, QueueLag]:
        """Return how far each assigned queue is behind whose end a broker has told."""
        return {
            assigned.queue: QueueLag(assigned.lag, assigned.end_offset, now - assigned.told_at)
            for assigned in self._assigned.values()
            if assigned.is_started and assigned.end_offset != OFFSET_UNKNOWN
        }

    def take(self, now: float, count: int | None = None) -> list[ReceivedMessage]:
        """Return the messages of the next handler call, none when nothing is ready.

        At most `count`, None: a batch.

        `now` is by the clock of leases. They are of one topic, and each of another ordering key.
        Queues take turns, so that a busy one does not starve the others.
        """
        wanted = count or self.subscription.batch
        self._takes += 1
        if self._takes > len(self._assigned):
            self._look_for_busy()
        taken = self._take_in_turn(now, wanted)
        if not taken and self._look_for_busy():
            taken = self._take_in_turn(now, wanted)
        return taken

    @property
    def ready(self) -> int:
        """How many messages could be taken, locks aside."""
        return sum(assigned.ready for assigned in self._assigned.values())

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
        self.offset_tables.forget(names)
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

    def _take_in_turn(self, now: float, wanted: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        for _ in range(len(self._busy)):
            assigned = self._busy.popleft()
            if not assigned.has_ready or assigned.leaving:
                continue  # until it is found to be busy again
            taken += assigned.take(wanted - len(taken), now, taken[0].topic if taken else None)
            self._busy.append(assigned)
            if len(taken) == wanted:
                break
        return taken

    def _look_for_busy(self) -> bool:
        """Let queues take turns that have something; most of many have nothing most of the time.

        Returns whether there are more than before.
        """
        self._takes = 0
        known = set(map(id, self._busy))
        new = [q for q in self._assigned.values() if q.has_ready and id(q) not in known]
        self._busy.extend(new)
        return bool(new)

    def _tell_paused(self) -> None:
        for assigned in self.all_queues:
            assigned.paused = self._all_paused or assigned.queue in self._paused

    def invariants(self) -> None:
        """Hold the class's invariant, and those of each queue."""
        if self._assigned.keys() & self._leaving.keys():
            raise InvariantBroken("a queue is assigned and leaving")
        if len(set(map(id, self._busy))) != len(self._busy):
            raise InvariantBroken("a queue has two turns")
        for assigned in self.all_queues:
            assigned.invariants()
