"""How old the oldest message is that a group has not consumed: a figure for metrics.

Receives the offsets of the groups, and the time. Reads the log at these offsets, a little in each
turn: a turn ends after a millisecond, or after the one read of a slow disk that takes longer.
Apache RocketMQ has the same figure, `rocketmq_consumer_lag_latency` (`ConsumerLagCalculator`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from reliable_mq.broker_core.names import RETRY_PREFIX, is_system_group, pop_retry_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.errors import InvariantBroken, RecordError, StoreError
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.pop_handle import popped_topic
from reliable_mq.wire.record import RECORD_HEAD_SIZE_MAX, is_message
from reliable_mq.wire.record_head import store_time_in

PAIRS_MAX = 2_000
"""Pairs of group and topic that have a figure."""
QUEUES_A_TURN = 1_000
READS_A_TURN = 32
TURN_SECONDS = 0.001
"""A turn begins no other queue after this time: reads of a slow disk take some ms each."""

_NAME = "reliable_mq_broker_consumer_lag_seconds"

_Pair = tuple[str, str]
"""Topic and group."""


class ConsumerAges:
    """The store time of the oldest unconsumed message of each group in each topic.

    A round looks at all queues in which a group has an offset. It takes one turn if it is short,
    else several: then a figure is some turns old. A topic that a connected group does not subscribe
    to has no figure.

    Messages that are popped and not acknowledged count as not consumed. Only their number is known.
    So if later ones are acknowledged first, the figure is too small, until they come back: to the
    group's retry topic, which has a figure of its own, and whose messages are as old as their
    return.

    Invariant: at most `PAIRS_MAX` pairs are kept.

    Args:
        state: the broker.
        clock: a monotonic clock, in seconds; None: a turn ends after its queues and reads only.
    """

    def __init__(self, state: BrokerState, clock: Callable[[], float] | None = None) -> None:
        self._state = state
        self._clock = clock or (lambda: 0.0)
        self._since_ms: dict[_Pair, int] = {}  # 0: everything is consumed
        # By pair and queue: an offset, and when its message was stored. It is not read again.
        self._known: dict[_Pair, dict[int, tuple[int, int]]] = {}
        self._rounds = self._look_at_all()
        self._reads = 0

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """Look at some queues, and yield a sample for each pair of group and topic."""
        self._look()
        for (topic, group), since_ms in self._since_ms.items():
            age_ms = max(0, now_ms - since_ms) if since_ms else 0
            yield Sample(_NAME, age_ms / 1000, (group, topic))

    def invariants(self) -> None:
        """Check the class's invariant."""
        if len(self._since_ms) > PAIRS_MAX:
            raise InvariantBroken(f"{len(self._since_ms)} pairs are kept, more than {PAIRS_MAX}")

    def _look(self) -> None:
        """Look at some queues. The turn ends with a round, or when it has done enough."""
        self._reads = 0
        end = self._clock() + TURN_SECONDS
        try:
            for is_within_round in islice(self._rounds, QUEUES_A_TURN):
                if not is_within_round or self._reads >= READS_A_TURN or self._clock() >= end:
                    return
        except Exception:
            self._rounds = self._look_at_all()  # a generator that has raised does not go on
            raise

    def _look_at_all(self) -> Iterator[bool]:
        """Look at each queue once, and begin again. Yields True after a queue, False at the end."""
        while True:
            pairs = list(islice(self._wanted(), PAIRS_MAX))
            for pair in self._since_ms.keys() - set(pairs):
                del self._since_ms[pair]
                self._known.pop(pair, None)
            for topic, group in pairs:
                found: dict[int, tuple[int, int]] = {}
                for queue_id in self._queues_of(topic, group):
                    self._look_at(group, self._state.store.queue(topic, queue_id), found)
                    yield True
                self._known[topic, group] = found
                times_ms = [stored_ms for _, stored_ms in found.values() if stored_ms]
                self._since_ms[topic, group] = min(times_ms, default=0)
            self.invariants()
            yield False

    def _look_at(
        self, group: str, queue: ConsumeQueue | None, found: dict[int, tuple[int, int]]
    ) -> None:
        """Add the oldest unconsumed message of a queue to `found`, if there is one."""
        if queue is None:
            return
        offset = self._oldest(group, queue)
        if offset is None:
            return
        known = self._known.get((queue.topic, group), {}).get(queue.queue_id)
        if known is None or known[0] != offset:
            try:
                known = offset, self._stored_ms(queue, offset)
            except (OSError, StoreError):  # the next round tries again; other metrics must not fail
                if known is None:
                    return
        found[queue.queue_id] = known

    def _wanted(self) -> Iterator[_Pair]:
        """Yield the pairs that have a figure; none at a slave, whose master has them."""
        if self._state.config.is_slave:
            return
        topics = self._state.topics.by_name
        for topic, group in self._state.offsets.pairs():
            if is_system_group(group):
                continue
            members = self._state.clients.consumer_group(group)
            wanted = members.subscriptions if members is not None else None
            # Who pops a topic does not name its retry topics.
            if wanted and topic not in wanted and popped_topic(topic, group) not in wanted:
                continue
            yield topic, group
            for is_v2 in (False, True):
                retry = pop_retry_topic(topic, group, is_v2=is_v2)
                if retry in topics and self._is_unpopped(retry, group):
                    yield retry, group

    def _is_unpopped(self, retry: str, group: str) -> bool:
        """Whether messages came back to a group that has popped none of them again.

        Group `a_b` may have a retry topic of this name, too: then it is that group's.
        """
        other = retry.removeprefix(RETRY_PREFIX)
        is_own = other not in self._state.groups.by_name
        return is_own and not self._state.offsets.size_of(group, retry)

    def _queues_of(self, topic: str, group: str) -> Iterable[int]:
        """Return the queues in which a group has an offset; else all, which it has not popped."""
        found = self._state.offsets.all_of(group, topic)
        config = self._state.topics.get(topic)
        return found or range(config.read_queue_nums if config is not None else 0)

    def _oldest(self, group: str, queue: ConsumeQueue) -> int | None:
        """Return the queue offset of the oldest unconsumed message; None: there is none."""
        topic, queue_id = queue.topic, queue.queue_id
        offset = self._state.offsets.get(group, topic, queue_id) or 0
        offset -= self._state.popped.count(topic, group, queue_id)
        offset = max(queue.first, offset)
        return offset if offset < queue.end else None

    def _stored_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """Return when a message was stored, in ms; 0: there is no sound message.

        Raises:
            OSError, StoreError: when a file cannot be read.
        """
        self._reads += 1
        begin = queue.unit(offset).commit_log_offset
        head = self._state.store.log.read(begin, RECORD_HEAD_SIZE_MAX)
        if not is_message(head, queue.queue_id, offset):
            return 0
        try:
            return store_time_in(head)
        except RecordError:
            return 0
