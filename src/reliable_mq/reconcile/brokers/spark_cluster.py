"""What a running cluster holds, asked once where a run is planned: its brokers, queues, offsets.

Receives the addresses of name servers; hands on one `BrokerLedger` for each broker, with partitions
that Spark's workers can pull by themselves (`spark_topic_source`). What a broker says is kept under
its name, because offsets and log offsets of two brokers have nothing to do with each other.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from reliable_mq.errors import ConfigurationError, ReliableMQError, Unavailable
from reliable_mq.limits import DELAY_LEVELS_TEXT
from reliable_mq.reconcile.brokers import topic_pulls
from reliable_mq.reconcile.brokers.log_roles import Customs, delay_levels, pop_retries
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.reconcile.brokers.queue_ranges import QueueRanges
from reliable_mq.reconcile.brokers.topic_pulls import BrokerAddress, QueueRange
from reliable_mq.reconcile.clocks import Clock
from reliable_mq.runtime.blocking_link import BlockingLink

TIMEOUT_SECONDS = 10.0
MESSAGES_PER_PARTITION = 250_000
_SECOND = 1.0  # brokers tell the time in whole ones


@dataclass(frozen=True)
class PullPartition:
    """Messages of one queue of one broker: offsets `begin` .. `end` - 1.

    `delay_ms`, `pop_retries`: of `Customs`, the latter as (retry topic, group, topic).
    """

    broker: BrokerAddress
    topic: str
    queue_id: int
    begin: int
    end: int
    delay_ms: tuple[int, ...]
    pop_retries: tuple[tuple[str, str, str], ...] = ()

    def customs(self) -> Customs:
        """Return what the meaning of these messages depends on."""
        return Customs(
            delay_ms=self.delay_ms,
            pop_retries={name: (group, topic) for name, group, topic in self.pop_retries},
        )


@dataclass(frozen=True)
class BrokerLedger:
    """What one broker of a cluster holds.

    `queues`: (topic, queue id) -> the first offset and the end. `progress`: the committed offsets.
    `missing`: why the broker could not be read, None: it is whole. `clock`: None, it does not tell.
    """

    broker: BrokerAddress
    partitions: tuple[PullPartition, ...] = ()
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    progress: Progress = field(default_factory=dict)
    missing: str | None = None
    clock: Clock | None = None


def read_cluster(
    name_servers: str,
    topics: Collection[str] = (),
    *,
    since_ms: int = 0,
    messages_per_partition: int = MESSAGES_PER_PARTITION,
    timeout: float = TIMEOUT_SECONDS,
    is_partial: bool = False,
    brokers: Collection[str] | None = None,
) -> list[BrokerLedger]:
    """Ask the name servers for the brokers, and each broker for what it holds.

    Args:
        name_servers: "host:port;host:port".
        topics: those to be read; none: all that may hold messages of applications or their copies,
            such as dead-letter topics.
        since_ms: leave out what was stored before, milliseconds since the epoch.
        messages_per_partition: how many messages a partition has at most.
        timeout: seconds that each answer may take.
        is_partial: give a broker that cannot be read as `missing` instead of failing.
        brokers: those that are read, by their names; None: all.

    Returns:
        One ledger for each broker, sorted by name.

    Raises:
        ConfigurationError: an address is none, or no broker has a topic that was asked for.
        Unavailable: no name server, or a broker, does not answer, or none of the name servers
            knows a broker that was asked for; the text names it.
        RemoteError, ProtocolError: an answer is a refusal or nonsense.
    """
    ledgers = []
    for broker in _brokers(topic_pulls.addresses(name_servers), timeout):
        if brokers is not None and broker.name not in brokers:
            continue
        try:
            with BlockingLink(broker.address, timeout) as link:
                ask = _Asking(broker, link, frozenset(topics), since_ms, messages_per_partition)
                ledgers.append(ask.ledger())
        except ReliableMQError as error:
            told = f"broker {broker.name} cannot be read: {error}"
            if not is_partial:
                raise type(error)(told) if isinstance(error, Unavailable) else error from error
            ledgers.append(BrokerLedger(broker, missing=told))
    gone = set(brokers or ()) - {ledger.broker.name for ledger in ledgers}
    if gone:
        raise Unavailable(f"no name server knows the broker {', '.join(sorted(gone))} any more")
    known = {topic for ledger in ledgers for topic, _ in ledger.queues}
    unknown = sorted(set(topics) - known)
    if unknown and all(ledger.missing is None for ledger in ledgers):
        raise ConfigurationError(f"no broker has the topic {', '.join(unknown)}")
    return ledgers


def within(
    partitions: Iterable[PullPartition], ranges: Mapping[str, QueueRanges]
) -> Iterator[PullPartition]:
    """Yield what partitions have of stretches of queues, given by broker."""
    for each in partitions:
        stretch = ranges.get(each.broker.name, {}).get((each.topic, each.queue_id))
        if stretch is not None:
            cut = replace(each, begin=max(each.begin, stretch[0]), end=min(each.end, stretch[1]))
            if cut.begin < cut.end:
                yield cut


def _brokers(name_servers: Sequence[str], timeout: float) -> list[BrokerAddress]:
    reasons = []
    with ExitStack() as links:
        for address in name_servers:
            link = links.enter_context(BlockingLink(address, timeout))
            try:
                found = topic_pulls.brokers_in(link.call(topic_pulls.ask_brokers()))
            except Unavailable as error:
                reasons.append(str(error))
                continue
            if not found:
                raise Unavailable(f"name server {address} knows no broker")
            return found
    raise Unavailable(f"no name server answers ({'; '.join(reasons)})")


class _Asking:
    """One broker's answers, put together."""

    def __init__(
        self,
        broker: BrokerAddress,
        link: BlockingLink,
        topics: frozenset[str],
        since_ms: int,
        messages_per_partition: int,
    ) -> None:
        self._broker, self._link = broker, link
        self._topics, self._since_ms = topics, since_ms
        self._messages_per_partition = messages_per_partition

    def ledger(self) -> BrokerLedger:
        """Ask everything.

        Raises:
            Unavailable, RemoteError, ProtocolError: when the broker does not tell.
        """
        link = self._link
        names = topic_pulls.topics_in(link.call(topic_pulls.ask_topics()))
        groups = topic_pulls.groups_in(link.call(topic_pulls.ask_groups()))
        levels = topic_pulls.delay_levels_in(link.call(topic_pulls.ask_settings()))
        delays = delay_levels(levels or DELAY_LEVELS_TEXT)
        retries = tuple((name, *parts) for name, parts in pop_retries(names, groups).items())
        queues: dict[tuple[str, int], tuple[int, int]] = {}
        partitions: list[PullPartition] = []
        for topic in names:
            if not (topic in self._topics if self._topics else topic_pulls.is_told_of(topic)):
                continue
            for queue in topic_pulls.ranges_in(link.call(topic_pulls.ask_ranges(topic))):
                queues[topic, queue.queue_id] = queue.begin, queue.end
                for begin, end in self._cut(topic, queue):
                    partitions.append(
                        PullPartition(
                            self._broker, topic, queue.queue_id, begin, end, delays, retries
                        )
                    )
        # Last, so that nothing counts as read whose offset was not yet there.
        progress = topic_pulls.progress_in(link.call(topic_pulls.ask_progress()))
        clock = self._clock()
        return BrokerLedger(self._broker, tuple(partitions), queues, progress, clock=clock)

    def _clock(self) -> Clock | None:
        before = time.time()
        theirs = topic_pulls.clock_in(self._link.call(topic_pulls.ask_runtime()))
        after = time.time()
        if theirs is None:
            return None
        ahead = theirs + _SECOND / 2 - (before + after) / 2
        return Clock(f"the broker {self._broker.name}", ahead, (_SECOND + after - before) / 2)

    def _cut(self, topic: str, queue: QueueRange) -> Iterator[tuple[int, int]]:
        begin = queue.begin
        if self._since_ms > 0 and begin < queue.end:
            question = topic_pulls.ask_first_since(topic, queue.queue_id, self._since_ms)
            begin = max(begin, topic_pulls.first_in(self._link.call(question)))
        while begin < queue.end:
            end = min(queue.end, begin + self._messages_per_partition)
            yield begin, end
            begin = end
