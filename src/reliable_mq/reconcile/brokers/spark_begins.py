"""Where the queues and logs of brokers begin, while retention is at work.

Receives what was asked before the logs were read; hands on what is asked again behind it. A message
that expired in between is in nothing that was read, and yet no broker has lost it: its queue begins
behind it by now.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from reliable_mq.reconcile.brokers import file_store, topic_pulls
from reliable_mq.reconcile.brokers.log_schema import TIME_MAX_MS
from reliable_mq.reconcile.brokers.spark_access import OPEN, ClusterAccess
from reliable_mq.reconcile.brokers.spark_cluster import TIMEOUT_SECONDS
from reliable_mq.reconcile.moments import of_milliseconds

QueueBegins = Mapping[tuple[str, str], Mapping[int, int]]
"""(broker, topic) -> queue id -> the first message that is there."""


class LogBegins(NamedTuple):
    """Where logs begin: each queue, and, by broker, when the first record that is there was stored.

    The latter only of brokers that tell.
    """

    queues: QueueBegins
    oldest: Mapping[str, datetime]


class MovingBegins(dict[tuple[str, str], Mapping[int, int]]):
    """What was asked first, and who can be asked again. Workers get copies of it.

    Args:
        begins: what was asked first.
        stores: broker -> its store directory.
        addresses: broker of a running cluster -> its address.
        access: as whom they are asked.
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
        """Return where logs begin behind the reading: of stores, and of `topics` of a cluster.

        It is asked once for each topic: whoever calls has read everything.

        Raises:
            StoreError: a directory is no store any more.
            Unavailable, RemoteError, ProtocolError: a broker does not tell any more.
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
                (topic, each.queue_id): each.begin
                for topic in topics
                for each in topic_pulls.ranges_in(link.call(topic_pulls.ask_ranges(topic)))
            }
            oldest_ms = topic_pulls.oldest_in(link.call(topic_pulls.ask_runtime()))
        return LogBegins(begins_of(broker, firsts), oldest_of(broker, oldest_ms))


def begins_of(
    broker: str, firsts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, str], dict[int, int]]:
    """Return where the queues of a broker begin, given as (topic, queue id) -> offset."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for (topic, queue_id), begin in firsts.items():
        found.setdefault((broker, topic), {})[queue_id] = begin
    return found


def oldest_of(broker: str, oldest_ms: int | None) -> dict[str, datetime]:
    """Return when the first record of a broker's log was stored, by its name, if it is known."""
    if oldest_ms is None or not 0 <= oldest_ms <= TIME_MAX_MS:
        return {}
    return {broker: of_milliseconds(oldest_ms)}
