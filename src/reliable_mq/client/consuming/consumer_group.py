"""The state of a consumer group in one member: its queues and their messages.

All consuming flows work on one of these: `pulling`, `queue_locks`, `offsets`, `settling`,
`assignment`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from reliable_mq.client.connecting.namespace import NO_NAMESPACE, Namespace
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.allocation import Allocation, Configured, MachineRoom, average
from reliable_mq.client.consuming.assigned_queue import OFFSET_UNKNOWN, AssignedQueue
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.local_offsets import LocalOffsets
from reliable_mq.client.consuming.offset_tables import OffsetTables
from reliable_mq.client.consuming.popped_queue import PopLease, PoppedQueue
from reliable_mq.client.consuming.pull_faults import PullFaults
from reliable_mq.client.consuming.rate_history import PART_SECONDS, RateHistory, Sums
from reliable_mq.client.consuming.subscription import Sql, Subscription, expression_type
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import tags_of


class QueueLag(NamedTuple):
    """How far a group is behind in one queue, as the reading member knows it.

    Attributes:
        behind: messages between the commit offset and the end, including messages that tags or an
            expression filter out.
        end_offset: the end of the queue, from the broker's answer to the last pull.
        age: seconds since that answer. A pull that finds nothing takes up to 15 s. While a queue
            is paused or full, it is not pulled.
    """

    behind: int
    end_offset: int
    age: float


class TopicRates:
    """How fast a member of a group pulls and handles the messages of one topic. In seconds.

    Args:
        now: when counting begins.
    """

    def __init__(self, now: float) -> None:
        self._history = RateHistory(now)
        self._sums = Sums(float)  # since `_since`
        self._since = now

    def pulled(self, messages: int, took: float, now: float) -> None:
        """Count a pull that found messages."""
        if now - self._since >= PART_SECONDS:
            self._roll(now)
        self._sums["pulls"] += 1
        self._sums["pulled"] += messages
        self._sums["pull_seconds"] += took

    def handled(self, consumed: int, failed: int, took: float, now: float) -> None:
        """Count a handler call with its consumed and failed messages."""
        if now - self._since >= PART_SECONDS:
            self._roll(now)
        self._sums["calls"] += 1
        self._sums["consumed"] += consumed
        self._sums["failed"] += failed
        self._sums["call_seconds"] += took

    def status(self, now: float) -> dict[str, float]:
        """Return the rates of the last minute, see `RateHistory.status`."""
        self._roll(now)
        return self._history.status(now)

    def _roll(self, now: float) -> None:
        self._history.add(self._sums, self._since)
        self._sums, self._since = Sums(float), now


class ConsumerGroup:
    """One member's view of its group.

    Invariant: a queue is assigned or leaving, never both, and has one `AssignedQueue` in all.

    Args:
        subscription: what the group reads.
        version: milliseconds since the epoch when the subscription was made; brokers keep the
            newest.
        client_id: this member's name in the group.
        settings: limits and intervals.
        routes: routes of the topics.
        producer: sends retries and dead letters.
        budget: the memory that all queues of the client share; None: the group has its own.
        polled: whether the application polls messages and decides what is committed. Then there
            are no retries.
        is_member: whether brokers know this client as a member, and its subscription.
        namespace: translates topics and groups; all names in here are whole.
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
        #: sends commits to brokers
        self.offset_tables = OffsetTables(self.name, settings.request_timeout_seconds)
        self.pull_faults = PullFaults(self.name)
        #: for a broadcasting group: its offset in each queue
        self.local_offsets: LocalOffsets | None = None
        self.filters: dict[str, str | Sql] = {}
        self.tags: dict[str, frozenset[str]] = {}
        #: the type of each filter, as brokers call it
        self.expression_types: dict[str, str] = {}
        topics = subscription.all_topics() if self.has_retries else subscription.topics
        for topic, wanted in topics.items():
            self.add_topic_of(topic, wanted)
        self._rates: dict[str, TopicRates] = {}
        self.is_unheard = False  # a broker does not know the subscription, or knows an older one
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        self._busy: deque[AssignedQueue] = deque()  # queues with ready messages, when last checked
        self._takes = 0  # since that check
        self.budget = budget or FlowBudget(settings.held_total_bytes_max)
        self.is_paused = False
        self._paused: set[MessageQueue] = set()

    @property
    def assigned(self) -> list[AssignedQueue]:
        """The queues that this member reads."""
        return list(self._assigned.values())

    @property
    def all_queues(self) -> list[AssignedQueue]:
        """The queues that this member reads, and those not given back yet."""
        return [*self._assigned.values(), *self._leaving.values()]

    @property
    def has_retries(self) -> bool:
        """Whether failed messages are sent back to the broker, which keeps the group's offsets."""
        return not (self.polled or self.subscription.broadcasting)

    def add_topic_of(self, topic: str, wanted: str | Sql) -> None:
        """Read a topic too."""
        self.filters[topic] = wanted
        self.tags[topic] = tags_of(wanted)
        self.expression_types[topic] = expression_type(wanted)

    def rates_of(self, topic: str, now: float) -> TopicRates:
        """Return the rates of pulling and handling of a topic."""
        rates = self._rates.get(topic)
        if rates is None:
            rates = self._rates[topic] = TopicRates(now)
        return rates

    def allocation_of(self, topic: str) -> Allocation:
        """Return the allocation for `topic`.

        The group's own retry topic exists at every broker. If the topics' queues are shared
        manually or by rooms, the retry topic's are shared evenly. Otherwise some would have no
        reader.
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
        """Whether `queue` is revoked and not given back yet."""
        return queue in self._leaving

    def find(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return the state of `queue`, assigned or leaving; None when it is neither."""
        return self._assigned.get(queue) or self._leaving.get(queue)

    def assign(self, queue: MessageQueue) -> AssignedQueue:
        """Begin to read `queue`. It starts when it has an offset, and a lock if it needs one."""
        if self.find(queue) is not None:
            raise InvariantBroken(f"{queue} is assigned twice")
        ordered = self.subscription.ordered
        shared = self.has_retries and queue.topic != self.subscription.retry_topic
        assigned = AssignedQueue(
            queue,
            ordered=ordered,
            needs_lock=ordered and shared,
            settings=self.settings,
            budget=self.budget,
        )
        assigned.paused = self.is_paused or queue in self._paused
        self._assigned[queue] = assigned
        return assigned

    def popped_queue(
        self, queue: MessageQueue, acknowledge: Callable[[PopLease], None]
    ) -> PoppedQueue:
        """Return the popped messages of `queue`, of a consumer by the message."""
        found = self._assigned.get(queue)
        if isinstance(found, PoppedQueue):
            return found
        made = PoppedQueue(
            queue, settings=self.settings, budget=self.budget, acknowledge=acknowledge
        )
        made.paused = self.is_paused
        self._assigned[queue] = made
        return made

    @property
    def popped_queues(self) -> list[PoppedQueue]:
        """The queues with popped messages, of a consumer by the message."""
        return [each for each in self._assigned.values() if isinstance(each, PoppedQueue)]

    def leave(self, queue: MessageQueue) -> AssignedQueue:
        """Start no more messages of `queue`; it is given back when none of its messages runs."""
        assigned = self._assigned.pop(queue)
        assigned.leaving = True
        self._leaving[queue] = assigned
        self.pull_faults.left(queue)
        return assigned

    def forget(self, assigned: AssignedQueue) -> None:
        """Drop a queue that was given back."""
        del self._leaving[assigned.queue]
        assigned.release()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no more messages of `queues`, present or future, until `resume`; None: of all."""
        if queues is None:
            self.is_paused = True
        else:
            self._paused.update(queues)
        self._update_paused()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue with `queues`; None: with all, however they were paused."""
        if queues is None:
            self.is_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self._update_paused()

    def lag(self, now: float) -> dict[MessageQueue, QueueLag]:
        """Return the lag of each assigned queue whose end is known from a pull."""
        return {
            assigned.queue: QueueLag(assigned.lag, assigned.end_offset, now - assigned.told_at)
            for assigned in self._assigned.values()
            if assigned.is_started and assigned.end_offset != OFFSET_UNKNOWN
        }

    def take_ready(self, now: float, count: int | None = None) -> list[ReceivedMessage]:
        """Return the messages of the next handler call; empty when none is ready.

        At most `count`; None: a batch.

        `now` is on the lease clock. The messages have one topic, and each another ordering key.
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
        """Number of ready messages, ignoring locks."""
        return sum(assigned.ready for assigned in self._assigned.values())

    def wake(self, now: float) -> float | None:
        """Make held messages ready whose time has come; return when the next one is due."""
        for assigned in self._assigned.values():
            assigned.wake(now)
        dues = [due for q in self._assigned.values() if (due := q.next_due()) is not None]
        return min(dues, default=None)

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Distrust locks and commits of brokers whose connection was lost.

        A broker that restarts has lost its locks, and maybe the newest offsets.
        """
        names = set(broker_names)
        self.offset_tables.forget(names)
        for assigned in self.all_queues:
            if assigned.queue.broker_name in names:
                assigned.lose_lock()
                assigned.committed_offset = OFFSET_UNKNOWN

    def by_broker(
        self, queues: Iterable[AssignedQueue]
    ) -> Iterator[tuple[str, list[AssignedQueue]]]:
        """Yield (broker name, its queues)."""
        table: dict[str, list[AssignedQueue]] = {}
        for assigned in queues:
            table.setdefault(assigned.queue.broker_name, []).append(assigned)
        yield from table.items()

    def master_of(self, broker_name: str) -> str | None:
        """Return the address of the broker's master; None when no route has one."""
        broker = self.routes.broker(broker_name)
        return broker.master if broker is not None else None

    def _take_in_turn(self, now: float, wanted: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        for _ in range(len(self._busy)):
            assigned = self._busy.popleft()
            if not assigned.ready_offsets or assigned.paused or assigned.leaving:
                continue  # until a check finds messages in it again
            taken += assigned.take_ready(
                wanted - len(taken), now, taken[0].topic if taken else None
            )
            self._busy.append(assigned)
            if len(taken) == wanted:
                break
        return taken

    def _look_for_busy(self) -> bool:
        """Find the queues with ready messages; of many queues, most are usually empty.

        Returns whether more queues than before have messages.
        """
        self._takes = 0
        known = set(map(id, self._busy))
        count = len(self._busy)
        for assigned in self._assigned.values():
            if assigned.ready_offsets and not assigned.paused and id(assigned) not in known:
                self._busy.append(assigned)
        return len(self._busy) > count

    def _update_paused(self) -> None:
        for assigned in self.all_queues:
            assigned.paused = self.is_paused or assigned.queue in self._paused

    def invariants(self) -> None:
        """Check the class's invariant, and those of each queue."""
        if self._assigned.keys() & self._leaving.keys():
            raise InvariantBroken("a queue is assigned and leaving")
        if len(set(map(id, self._busy))) != len(self._busy):
            raise InvariantBroken("a queue has two turns")
        for assigned in self.all_queues:
            assigned.invariants()
