"""`client.admin.messages` and `.dead_letters` on an event loop; nothing here consumes."""

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
    """Messages found by their names, keys, places and times."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message that a broker calls so: `SendResult.offset_message_id`.

        Raises:
            UsageError: when the id is none.
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when a broker that may have it does not tell.
        """
        return await self._run(messages.by_offset_id(self._cluster, offset_message_id))

    async def by_message_id(
        self, topic: str, message_id: str
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return what a topic holds under a message id (the unique key), the oldest first.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        name = self._names.whole(topic)
        return await self._run(messages.by_message_id(self._cluster, name, message_id))

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return the messages of a topic that bear a key, oldest first; 64 of each broker at most.

        Args:
            topic: the topic.
            key: one of the keys that the sender gave them.
            since: stored at this moment or later; aware of its time zone.
            until: stored at this moment or earlier.

        Raises:
            UsageError: when a moment is in no time zone, or before 1970.
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        begin_ms = epoch_ms(since) if since is not None else 0
        end_ms = epoch_ms(until) if until is not None else browsing.TIME_MAX
        name = self._names.whole(topic)
        return await self._run(messages.by_key(self._cluster, name, key, begin_ms, end_ms))

    async def at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[ReceivedMessage]:
        """Return the messages of a queue from an offset on; fewer than `count` when it ends.

        Raises:
            UsageError: when a number is negative.
            NoRoute: when the name servers do not know the topic, or no such broker of it.
            RemoteError, Unavailable, ProtocolError: when the broker does not tell.
        """
        place = whole_queue(self._names, queue)
        return await self._run(messages.at(self._cluster, place, offset, count))

    async def tracks(self, message: ReceivedMessage) -> ClusterReply[list[Track]]:
        """Return what each consumer group of a message's topic has made of it, by its name.

        Raises:
            UsageError: when the name servers know no such broker.
            RemoteError, Unavailable, ProtocolError: when nobody tells which groups there are.
        """
        told = await self._run(tracking.tracks(self._cluster, whole_message(self._names, message)))
        tracks = [Track(self._names.own(each.group), each.state) for each in told.value]
        return ClusterReply(tracks, told.failures)

    def scan(self, topic: str, since: datetime | None, until: datetime | None) -> TopicScan:
        """Return the reading of a topic that `between` does, for `next_page`."""
        since_ms = epoch_ms(since) if since is not None else 0
        name = self._names.whole(topic)
        return TopicScan(
            self._cluster, name, since_ms, epoch_ms(until) if until is not None else None
        )

    async def next_page(self, scan: TopicScan) -> list[ReceivedMessage] | None:
        """Return the next messages of a reading, perhaps none; None: there are no more."""
        return await self._run(scan.next_page())

    async def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield what a topic holds, queue after queue, up to what it held when a queue was begun.

        Args:
            topic: the topic.
            since: only what was stored at this moment or later; aware of its time zone.
            until: only what was stored before.

        Raises:
            UsageError: when a moment is in no time zone, or before 1970.
            NoRoute: when the topic is not known, or none of its queues may be read.
            RemoteError, Unavailable, ProtocolError: at the end, when a broker did not tell, or not
                all; what others told has come.
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
    """Messages that consumer groups gave up: listed, and sent again."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace
        self._messages = AsyncMessages(engine, cluster)

    async def groups(self) -> list[str]:
        """Return the consumer groups that have a dead-letter topic, sorted.

        Raises:
            RemoteError, Unavailable, ProtocolError: when no name server tells.
        """
        names = await self._engine.run(browsing.topic_names(self._cluster.name_servers))
        prefix = DEAD_LETTER_PREFIX
        groups = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(own_of(self._names, groups))

    def of_group(
        self, group: str, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the dead letters of a consumer group, as `AsyncMessages.between` does.

        A letter that was sent again, or consumed since, is still there: no broker knows of that.
        """
        return self._messages.between(DEAD_LETTER_PREFIX + group, since, until)

    async def send_again(self, group: str, letter: ReceivedMessage) -> None:
        """Let a dead letter come to its consumer group again, and to no other, in about a second.

        Raises:
            NoRoute: when the dead-letter topic or its broker is not known.
            RemoteError, Unavailable: when the broker does not.
        """
        name, stored = self._names.whole(group), whole_message(self._names, letter)
        flow = browsing.hand_back(self._cluster.routes, self._cluster.settings, name, stored)
        await self._engine.run(flow)
