"""What a running cluster holds, asked once where a run is planned: its brokers, queues, offsets.

Receives the addresses of name servers; hands on one `BrokerLedger` for each broker, with partitions
that Spark's workers can pull by themselves (`spark_topic_source`). What a broker says is kept under
its name, because offsets and log offsets of two brokers have nothing to do with each other.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from reliable_mq.errors import (
    ConfigurationError,
    ProtocolError,
    ReliableMQError,
    RemoteError,
    Unavailable,
)
from reliable_mq.limits import DELAY_LEVELS_TEXT
from reliable_mq.reconcile.brokers import topic_pulls
from reliable_mq.reconcile.brokers.log_roles import RecordContext, delay_levels, pop_retries
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.reconcile.brokers.queue_ranges import QueueRanges
from reliable_mq.reconcile.brokers.spark_access import OPEN, ClusterAccess, access_here
from reliable_mq.reconcile.brokers.topic_pulls import BrokerAddress, QueueRange
from reliable_mq.reconcile.clocks import LedgerClock
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.addresses import split_addresses

TIMEOUT_SECONDS = 10.0
MESSAGES_PER_PARTITION = 250_000
_SECOND = 1.0  # brokers tell the time in whole ones


@dataclass(frozen=True)
class PullPartition:
    """Messages of one queue of one broker: offsets `begin` .. `end` - 1.

    `delay_ms`, `pop_retries`: of `RecordContext`, the latter as (retry topic, group, topic).
    `access`: as whom the broker is read.
    """

    broker: BrokerAddress
    topic: str
    queue_id: int
    begin: int
    end: int
    delay_ms: tuple[int, ...]
    pop_retries: tuple[tuple[str, str, str], ...] = ()
    access: ClusterAccess = OPEN

    def customs(self) -> RecordContext:
        """Return what the meaning of these messages depends on."""
        return RecordContext(
            delay_ms=self.delay_ms,
            pop_retries={name: (group, topic) for name, group, topic in self.pop_retries},
        )


@dataclass(frozen=True)
class BrokerLedger:
    """What one broker of a cluster holds.

    `queues`: (topic, queue id) -> the first offset and the end. `progress`: the committed offsets.
    `missing`: why the broker could not be read, None: it is whole. `clock`: None, it does not tell.
    `oldest_ms`: when the first record of its log was stored, milliseconds since the epoch, or None.
    """

    broker: BrokerAddress
    partitions: tuple[PullPartition, ...] = ()
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    progress: Progress = field(default_factory=dict)
    missing: str | None = None
    clock: LedgerClock | None = None
    oldest_ms: int | None = None


def read_cluster(
    name_servers: str,
    topics: Collection[str] = (),
    *,
    since_ms: int = 0,
    messages_per_partition: int = MESSAGES_PER_PARTITION,
    timeout: float = TIMEOUT_SECONDS,
    is_partial: bool = False,
    brokers: Collection[str] | None = None,
    is_whole: bool = False,
    access: ClusterAccess | None = None,
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
        is_whole: a topic that holds messages and may not be read is no ledger; else it is left out,
            unless it was asked for.
        access: as whom the cluster is read; None: as this process's environment says.

    Returns:
        One ledger for each broker, sorted by name.

    Raises:
        ConfigurationError: an address is none, no broker has a topic that was asked for, a topic
            may not be read, or the account or the certificates of the environment do not read.
        Unavailable: no name server, or a broker, does not answer, or none of the name servers
            knows a broker that was asked for; the text names it.
        RemoteError, ProtocolError: an answer is a refusal or nonsense.
    """
    access = access_here() if access is None else access
    ledgers = []
    for broker in _brokers(split_addresses(name_servers), timeout, access):
        if brokers is not None and broker.name not in brokers:
            continue
        try:
            with access.link(broker.address, timeout) as link:
                asked = _Asked(
                    frozenset(topics), since_ms, messages_per_partition, is_whole, access
                )
                ask = _Asking(broker, link, asked)
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


def _brokers(
    name_servers: Sequence[str], timeout: float, access: ClusterAccess
) -> list[BrokerAddress]:
    reasons = []
    with ExitStack() as links:
        for address in name_servers:
            link = links.enter_context(access.link(address, timeout))
            try:
                found = topic_pulls.brokers_in(link.call(topic_pulls.ask_brokers()))
            except Unavailable as error:
                reasons.append(str(error))
                continue
            except (RemoteError, ProtocolError) as error:  # of a broker, or of another program
                reasons.append(f"{address} is no name server: {error}")
                continue
            if not found:
                raise Unavailable(f"name server {address} knows no broker")
            return found
    raise Unavailable(f"no name server answers ({'; '.join(reasons)})")


@dataclass(frozen=True)
class _Asked:
    """What is to be read of each broker; see `read_cluster`."""

    topics: frozenset[str]
    since_ms: int
    messages_per_partition: int
    is_whole: bool
    access: ClusterAccess

    def wants(self, topic: str) -> bool:
        return topic in self.topics if self.topics else topic_pulls.is_told_of(topic)

    def needs(self, topic: str) -> bool:
        return self.is_whole or topic in self.topics


class _Asking:
    """One broker's answers, put together."""

    def __init__(self, broker: BrokerAddress, link: BlockingLink, asked: _Asked) -> None:
        self._broker, self._link, self._asked = broker, link, asked

    def ledger(self) -> BrokerLedger:
        """Ask everything.

        Raises:
            Unavailable, RemoteError, ProtocolError: when the broker does not tell.
            ConfigurationError: when what is needed may not be read.
        """
        link = self._link
        # First: what a group passes from here on, and what becomes of it, may lie behind what is
        # read, but is not taken for passed.
        progress = topic_pulls.progress_in(link.call(topic_pulls.ask_progress()))
        names = topic_pulls.topics_in(link.call(topic_pulls.ask_topics()))
        groups = topic_pulls.groups_in(link.call(topic_pulls.ask_groups()))
        levels = topic_pulls.delay_levels_in(link.call(topic_pulls.ask_settings()))
        delays = delay_levels(levels or DELAY_LEVELS_TEXT)
        retries = tuple((name, *parts) for name, parts in pop_retries(names, groups).items())
        queues: dict[tuple[str, int], tuple[int, int]] = {}
        partitions: list[PullPartition] = []
        for topic, is_readable in names.items():
            if not self._asked.wants(topic) or not (is_readable or self._asked.needs(topic)):
                continue
            for queue in topic_pulls.ranges_in(link.call(topic_pulls.ask_ranges(topic))):
                self._check_readable(topic, queue, is_readable)
                queues[topic, queue.queue_id] = queue.begin, queue.end
                for begin, end in self._cut(topic, queue):
                    place = self._broker, topic, queue.queue_id, begin, end
                    partitions.append(
                        PullPartition(*place, delays, retries, access=self._asked.access)
                    )
        before = time.time()
        runtime = link.call(topic_pulls.ask_runtime())
        after = time.time()
        return BrokerLedger(
            self._broker,
            tuple(partitions),
            queues,
            progress,
            clock=self._clock(topic_pulls.clock_in(runtime), before, after),
            oldest_ms=topic_pulls.oldest_in(runtime),
        )

    def _check_readable(self, topic: str, queue: QueueRange, is_readable: bool) -> None:
        if not is_readable and queue.begin < queue.end:
            raise ConfigurationError(
                f"the broker {self._broker.name} lets nobody read the topic {topic}, which holds"
                " messages (its perm lacks 4): allow it, or read the broker's store"
            )

    def _clock(self, theirs: float | None, before: float, after: float) -> LedgerClock | None:
        if theirs is None:
            return None
        ahead = theirs + _SECOND / 2 - (before + after) / 2
        return LedgerClock(f"the broker {self._broker.name}", ahead, (_SECOND + after - before) / 2)

    def _cut(self, topic: str, queue: QueueRange) -> Iterator[tuple[int, int]]:
        begin = queue.begin
        if self._asked.since_ms > 0 and begin < queue.end:
            question = topic_pulls.ask_first_since(topic, queue.queue_id, self._asked.since_ms)
            begin = max(begin, topic_pulls.first_in(self._link.call(question)))
        while begin < queue.end:
            end = min(queue.end, begin + self._asked.messages_per_partition)
            yield begin, end
            begin = end
