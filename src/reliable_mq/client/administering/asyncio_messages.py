"""`client.admin.messages` and `.dead_letters` on an event loop. They consume nothing."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TypeVar

from reliable_mq.client.administering import browsing, messages, tracking
from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    ClusterReply,
    epoch_ms,
    first_failure,
)
from reliable_mq.client.administering.own_names import own_of, owned, whole_message, whole_queue
from reliable_mq.client.administering.scanning import TopicScan
from reliable_mq.client.administering.tracking import Track
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import checked_verbs
from reliable_mq.client.flow import Flow
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX

T = TypeVar("T")


@checked_verbs
class AsyncMessages:
    """Finds messages by id, key, place and time."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message with this offset message id (`SendResult.offset_message_id`).

        Raises:
            UsageError: when the id is invalid.
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when a broker that may have it fails to answer.
        """
        return await self._run(messages.by_offset_id(self._cluster, offset_message_id))

    async def by_message_id(
        self, topic: str, message_id: str
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return the messages of a topic with a message id (the unique key), oldest first.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        name = self._names.full_name(topic)
        return await self._run(messages.by_message_id(self._cluster, name, message_id))

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return the messages of a topic with a key, oldest first; at most 64 per broker.

        Args:
            topic: the topic.
            key: one of the keys that the sender set.
            since: stored at this time or later; with a time zone.
            until: stored at this time or earlier.

        Raises:
            UsageError: when a time has no time zone, or is before 1970.
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        begin_ms = epoch_ms(since) if since is not None else 0
        end_ms = epoch_ms(until) if until is not None else browsing.TIME_MAX
        name = self._names.full_name(topic)
        return await self._run(messages.by_key(self._cluster, name, key, begin_ms, end_ms))

    async def at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[ReceivedMessage]:
        """Return messages of a queue, beginning at an offset; fewer than `count` at its end.

        Raises:
            UsageError: when a number is negative.
            NoRoute: when the name servers do not know the topic, or the broker for it.
            RemoteError, Unavailable, ProtocolError: when the broker fails to answer.
        """
        place = whole_queue(self._names, queue)
        return await self._run(messages.at(self._cluster, place, offset, count))

    async def tracks(self, message: ReceivedMessage) -> ClusterReply[list[Track]]:
        """Return the state of a message in each consumer group of its topic.

        Raises:
            UsageError: when the name servers do not know its broker.
            RemoteError, Unavailable, ProtocolError: when no broker returns the list of groups.
        """
        answers = await self._run(
            tracking.tracks(self._cluster, whole_message(self._names, message))
        )
        tracks = [Track(self._names.own_name(each.group), each.state) for each in answers.value]
        return ClusterReply(tracks, answers.failures)

    def scan(self, topic: str, since: datetime | None, until: datetime | None) -> TopicScan:
        """Return the scan of a topic that `between` uses, for `next_page`."""
        since_ms = epoch_ms(since) if since is not None else 0
        name = self._names.full_name(topic)
        return TopicScan(
            self._cluster, name, since_ms, epoch_ms(until) if until is not None else None
        )

    async def next_page(self, scan: TopicScan) -> list[ReceivedMessage] | None:
        """Return the next messages of a scan, perhaps an empty list; None at the end."""
        return await self._run(scan.next_page())

    async def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of a topic, queue by queue, up to each queue's end at its start.

        Args:
            topic: the topic.
            since: only messages stored at this time or later; with a time zone.
            until: only messages stored before this time.

        Raises:
            UsageError: when a time has no time zone, or is before 1970.
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable, ProtocolError: at the end, if a broker failed; messages of the
                others have been yielded.
        """
        scan = self.scan(topic, since, until)
        while (page := await self.next_page(scan)) is not None:
            for message in page:
                yield message
        if scan.failures:
            raise first_failure(scan.failures)

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))


@checked_verbs
class AsyncDeadLetters:
    """Dead letters of consumer groups: lists them, and sends them again."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace
        self._messages = AsyncMessages(engine, cluster)

    async def groups(self) -> list[str]:
        """Return the consumer groups that have a dead-letter topic, sorted.

        Raises:
            RemoteError, Unavailable, ProtocolError: when no name server answers.
        """
        names = await self._engine.run(browsing.topic_names(self._cluster.name_servers))
        prefix = DEAD_LETTER_PREFIX
        groups = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(own_of(self._names, groups))

    def of_group(
        self, group: str, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the dead letters of a consumer group, as `AsyncMessages.between` does.

        They include letters that were sent again or consumed later: brokers do not record that.
        """
        return self._messages.between(DEAD_LETTER_PREFIX + group, since, until)

    async def send_again(self, group: str, letter: ReceivedMessage) -> None:
        """Deliver a dead letter again to its consumer group only, after about a second.

        Raises:
            NoRoute: when the dead-letter topic or its broker is not known.
            RemoteError, Unavailable: when the broker fails to do it.
        """
        name, stored = self._names.full_name(group), whole_message(self._names, letter)
        flow = browsing.redeliver(self._cluster.routes, self._cluster.settings, name, stored)
        await self._engine.run(flow)
