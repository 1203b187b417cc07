"""How old the oldest message is that a group has not consumed: a figure for metrics.

Receives the offsets of the groups, and the time. Reads the log at these offsets, a little in each
turn, so that it holds up the broker for a millisecond at most. Apache RocketMQ has the same figure,
`rocketmq_consumer_lag_latency` (`ConsumerLagCalculator`).
"""

from collections.abc import Iterator
from itertools import islice

from reliable_mq.broker_core.names import is_system_group
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.errors import InvariantBroken, RecordError
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.record import RECORD_HEAD_SIZE_MAX, is_message
from reliable_mq.wire.record_head import store_time_in

PAIRS_MAX = 2_000
"""Pairs of group and topic that have a figure."""
QUEUES_A_TURN = 1_000
READS_A_TURN = 32

_NAME = "reliable_mq_broker_consumer_lag_seconds"

_Pair = tuple[str, str]
"""Topic and group."""


class ConsumerAges:
    """The store time of the oldest unconsumed message of each group in each topic.

    A round looks at all queues in which a group has an offset. It takes one turn if it is short,
    else several: then a figure is some turns old. A message that is popped and not acknowledged
    counts as not consumed. A topic that a connected group does not subscribe to has no figure.

    Invariant: at most `PAIRS_MAX` pairs are kept.

    Args:
        state: the broker.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
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
        try:
            for is_within_round in islice(self._rounds, QUEUES_A_TURN):
                if not is_within_round or self._reads >= READS_A_TURN:
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
                for queue_id in self._state.offsets.all_of(group, topic):
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
            known = offset, self._stored_ms(queue, offset)
        found[queue.queue_id] = known

    def _wanted(self) -> Iterator[_Pair]:
        """Yield the pairs that have a figure; none at a slave, whose master has them."""
        if self._state.config.is_slave:
            return
        for topic, group in self._state.offsets.pairs():
            if is_system_group(group):
                continue
            members = self._state.clients.consumer_group(group)
            if members is None or not members.subscriptions or topic in members.subscriptions:
                yield topic, group

    def _oldest(self, group: str, queue: ConsumeQueue) -> int | None:
        """Return the queue offset of the oldest unconsumed message; None: there is none."""
        topic, queue_id = queue.topic, queue.queue_id
        offset = self._state.offsets.get(group, topic, queue_id) or 0
        offset -= self._state.popped.count(topic, group, queue_id)
        offset = max(queue.first, offset)
        return offset if offset < queue.end else None

    def _stored_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """Return when a message was stored, in ms; 0: it cannot be read."""
        self._reads += 1
        begin = queue.unit(offset).commit_log_offset
        head = self._state.store.log.read(begin, RECORD_HEAD_SIZE_MAX)
        if not is_message(head, queue.queue_id, offset):
            return 0
        try:
            return store_time_in(head)
        except RecordError:
            return 0
