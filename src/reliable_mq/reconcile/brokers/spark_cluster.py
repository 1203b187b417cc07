"""The ledgers of a running cluster: brokers, queues and offsets, requested once to plan a run.

Receives the addresses of name servers. Returns one `BrokerLedger` for each broker, with partitions
that Spark's workers pull (`spark_topic_source`). All values are kept by broker name: offsets of two
brokers cannot be compared.
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
from reliable_mq.reconcile.brokers.popped import LATE_MS, not_beyond
from reliable_mq.reconcile.brokers.popped_pulls import pulled_in_flight
from reliable_mq.reconcile.brokers.queue_ranges import QueueRanges
from reliable_mq.reconcile.brokers.spark_access import OPEN, ClusterAccess, access_here
from reliable_mq.reconcile.brokers.topic_pulls import BrokerAddress, QueueRange
from reliable_mq.reconcile.clocks import LedgerClock
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.addresses import split_addresses
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.remote_faults import no_name_server

TIMEOUT_SECONDS = 10.0
MESSAGES_PER_PARTITION = 250_000
_SECOND = 1.0  # the resolution of a broker's clock in its replies


@dataclass(frozen=True)
class PullPartition:
    """Messages of one queue of one broker: the offsets `begin` … `end` - 1.

    `delay_ms`, `pop_retries`: as in `RecordContext`, the latter as (retry topic, group, topic).
    `access`: the account and TLS settings.
    """

    broker: BrokerAddress
    topic: str
    queue_id: int
    begin: int
    end: int
    delay_ms: tuple[int, ...]
    pop_retries: tuple[tuple[str, str, str], ...] = ()
    access: ClusterAccess = OPEN

    def record_context(self) -> RecordContext:
        """Return the context for reading these messages."""
        return RecordContext(
            delay_ms=self.delay_ms,
            pop_retries={name: (group, topic) for name, group, topic in self.pop_retries},
        )


@dataclass(frozen=True)
class BrokerLedger:
    """The ledger of one broker of a cluster.

    Attributes:
        broker: its name and address.
        partitions: the messages to pull.
        queues: (topic, queue id) -> (first offset, end).
        progress: the committed offsets; of a whole ledger, not beyond what is in flight.
        missing: why the broker could not be read. None: it was read.
        clock: the broker's clock. None: unknown.
        oldest_ms: store time of the first record of its log, milliseconds since the epoch. None:
            unknown.
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
        topics: the topics to read. Empty: all that may have messages of applications or their
            copies, such as dead-letter topics.
        since_ms: leave out messages that were stored before, milliseconds since the epoch.
        messages_per_partition: most messages of a partition. Default 250,000.
        timeout: seconds to wait for each reply. Default 10.
        is_partial: put the reason into `missing` if a broker cannot be read, and raise no error.
        brokers: the names of the brokers to read. None: all.
        is_whole: fail if a topic with messages is not readable, and count what is popped and not
            acknowledged as not passed. Otherwise such a topic is left out, unless it is in
            `topics`, and `progress` is what the brokers say.
        access: the account and TLS settings. None: those of this process's environment.

    Returns:
        One ledger for each broker, sorted by name.

    Raises:
        ConfigurationError: an address is invalid, no broker has a requested topic, a topic is not
            readable, or the account or certificates of the environment are invalid.
        Unavailable: no name server answers, a broker does not answer, or no name server knows a
            requested broker. The text names it.
        RemoteError, ProtocolError: a reply is an error or invalid.
    """
    access = access_here() if access is None else access
    ledgers = []
    for broker in brokers_of(split_addresses(name_servers), timeout, access):
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
            text = f"broker {broker.name} cannot be read: {error}"
            if not is_partial:
                raise type(error)(text) if isinstance(error, Unavailable) else error from error
            ledgers.append(BrokerLedger(broker, missing=text))
    gone = set(brokers or ()) - {ledger.broker.name for ledger in ledgers}
    if gone:
        raise Unavailable(f"no name server knows the broker {', '.join(sorted(gone))} any more")
    known = {topic for ledger in ledgers for topic, _ in ledger.queues}
    unknown = sorted(set(topics) - known)
    if unknown and all(ledger.missing is None for ledger in ledgers):
        raise ConfigurationError(f"no broker has the topic {', '.join(unknown)}")
    return ledgers


def cut_to_ranges(
    partitions: Iterable[PullPartition], ranges: Mapping[str, QueueRanges]
) -> Iterator[PullPartition]:
    """Cut partitions to ranges of queues, given by broker."""
    for each in partitions:
        stretch = ranges.get(each.broker.name, {}).get((each.topic, each.queue_id))
        if stretch is not None:
            cut = replace(each, begin=max(each.begin, stretch[0]), end=min(each.end, stretch[1]))
            if cut.begin < cut.end:
                yield cut


def brokers_of(
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
            except (RemoteError, ProtocolError) as error:  # a broker or another program answered
                is_broker = getattr(error, "code", 0) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                why = no_name_server(address) if is_broker else f"{address}: {error}"
                reasons.append(why)
                continue
            if not found:
                raise Unavailable(f"name server {address} knows no broker")
            return found
    raise Unavailable(f"no name server answers ({'; '.join(reasons)})")


@dataclass(frozen=True)
class _Asked:
    """The arguments of `read_cluster` that apply to each broker."""

    topics: frozenset[str]
    since_ms: int
    messages_per_partition: int
    is_whole: bool
    access: ClusterAccess

    def wants(self, topic: str) -> bool:
        return topic in self.topics if self.topics else topic_pulls.may_have_messages(topic)

    def needs(self, topic: str) -> bool:
        return self.is_whole or topic in self.topics


class _Asking:
    """Asks one broker for its ledger."""

    def __init__(self, broker: BrokerAddress, link: BlockingLink, asked: _Asked) -> None:
        self._broker, self._link, self._asked = broker, link, asked

    def ledger(self) -> BrokerLedger:
        """Send all requests, and return the ledger.

        Raises:
            Unavailable, RemoteError, ProtocolError: when the broker does not answer as needed.
            ConfigurationError: when a needed topic is not readable.
        """
        link = self._link
        # Ask for the offsets first. A group may pass more messages meanwhile, beyond the ranges
        # that are read. With this order they do not count as passed.
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
        if self._asked.is_whole:  # a run judges by it
            progress = not_beyond(progress, self._in_flight(topic_pulls.times_in(runtime), after))
        return BrokerLedger(
            self._broker,
            tuple(partitions),
            queues,
            progress,
            clock=self._clock(topic_pulls.clock_in(runtime), before, after),
            oldest_ms=topic_pulls.oldest_in(runtime),
        )

    def _in_flight(self, clock: tuple[float, float] | None, here: float) -> Progress:
        """Return the first offset that each group has in flight, by the broker's clock.

        While it has not run for long, it may not have brought back what came due before.
        """
        started, now = clock or (0.0, here)
        now_ms = int(now * 1000)
        newest_ms = now_ms if started * 1000 + LATE_MS < now_ms else 0
        return pulled_in_flight(self._link.call, self._broker.cluster, now_ms, newest_ms)

    def _check_readable(self, topic: str, queue: QueueRange, is_readable: bool) -> None:
        if not is_readable and queue.begin < queue.end:
            raise ConfigurationError(
                f"the broker {self._broker.name} forbids reading the topic {topic}, which has"
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
