"""The beginnings of queues and logs, which retention moves while a run reads.

Receives the values from before the logs were read. Returns new values, requested after the reading.
A message that expired in between was not read, but it is not lost either: it is before the new
beginning of its queue.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from reliable_mq.reconcile.brokers import file_store, topic_pulls
from reliable_mq.reconcile.brokers.log_schema import TIME_MAX_MS
from reliable_mq.reconcile.brokers.spark_access import OPEN, ClusterAccess
from reliable_mq.reconcile.brokers.spark_cluster import TIMEOUT_SECONDS
from reliable_mq.reconcile.brokers.topic_pulls import QueueRange
from reliable_mq.reconcile.moments import of_milliseconds
from reliable_mq.runtime.blocking_link import BlockingLink

QueueBegins = Mapping[tuple[str, str], Mapping[int, int]]
"""(broker, topic) -> queue id -> the first message that the queue still has."""


class LogBegins(NamedTuple):
    """The beginnings of queues, and the store time of the first record of each log.

    `oldest` has only brokers with a known time.
    """

    queues: QueueBegins
    oldest: Mapping[str, datetime]


class MovingBegins(dict[tuple[str, str], Mapping[int, int]]):
    """The first values, and the brokers that can be asked again. Workers get copies of it.

    Args:
        begins: the values from before the reading.
        stores: broker -> its store directory.
        addresses: broker of a running cluster -> its address.
        access: the account and TLS settings for the cluster. Default: none.
    """

    def __init__(
        self,
        begins: QueueBegins,
        stores: Mapping[str, str],
        addresses: Mapping[str, str],
        access: ClusterAccess = OPEN,
    ) -> None:
        super().__init__(begins)
        self._stores, self._addresses, self._access = stores, addresses, access
        self._now: dict[tuple[str, str], Mapping[int, int]] = {}
        self._oldest: dict[str, datetime] = {}

    def asked_again(self, topics: Collection[str]) -> LogBegins:
        """Return the beginnings after the reading: of all stores, and of `topics` of a cluster.

        Call it when everything is read: each topic is asked for once only.

        Raises:
            StoreError: a directory is no longer a store.
            Unavailable, RemoteError, ProtocolError: a broker no longer answers as needed.
        """
        if not self._now:
            for broker, path in self._stores.items():
                layout = file_store.read_layout(path)
                self._now |= begins_of(broker, layout.queue_begins)
                self._oldest |= oldest_of(broker, layout.oldest_ms)
        for broker, address in self._addresses.items():
            known = {topic for name, topic in self if name == broker}
            asked = {topic for name, topic in self._now if name == broker}
            wanted = sorted(known.intersection(topics) - asked)
            if wanted:
                found = self._of_broker(broker, address, wanted)
                self._now |= found.queues
                self._oldest |= found.oldest
        return LogBegins({**self, **self._now}, self._oldest)

    def _of_broker(self, broker: str, address: str, topics: Iterable[str]) -> LogBegins:
        with self._access.link(address, TIMEOUT_SECONDS) as link:
            firsts = {
                (topic, each.queue_id): _first_stored(link, topic, each)
                for topic in topics
                for each in topic_pulls.ranges_in(link.call(topic_pulls.ask_ranges(topic)))
            }
            oldest_ms = topic_pulls.oldest_in(link.call(topic_pulls.ask_runtime()))
        return LogBegins(begins_of(broker, firsts), oldest_of(broker, oldest_ms))


def _first_stored(link: BlockingLink, topic: str, queue: QueueRange) -> int:
    """Return the first offset of a queue with a record in the log.

    A broker removes a segment first, and corrects the beginnings of its queues later: Apache's
    within 10 seconds. A search by time passes over records that are gone.
    """
    if queue.begin == queue.end:
        return queue.begin
    found = topic_pulls.first_in(link.call(topic_pulls.ask_first_since(topic, queue.queue_id, 0)))
    return max(queue.begin, min(found, queue.end))


def begins_of(
    broker: str, firsts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, str], dict[int, int]]:
    """Return the beginnings of a broker's queues, given as (topic, queue id) -> offset."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for (topic, queue_id), begin in firsts.items():
        found.setdefault((broker, topic), {})[queue_id] = begin
    return found


def oldest_of(broker: str, oldest_ms: int | None) -> dict[str, datetime]:
    """Return broker -> store time of the first record of its log; empty if it is unknown."""
    if oldest_ms is None or not 0 <= oldest_ms <= TIME_MAX_MS:
        return {}
    return {broker: of_milliseconds(oldest_ms)}
