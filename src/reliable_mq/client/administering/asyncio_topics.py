"""`client.admin.topics` on an event loop: runs the flows of `topics` and `topic_changes`."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from reliable_mq.client.administering import topic_changes, topics
from reliable_mq.client.administering.cluster_reply import AdminTarget, ClusterReply
from reliable_mq.client.administering.own_names import own_of, owned
from reliable_mq.client.administering.topic_settings import QUEUES, TopicChange, TopicSettings
from reliable_mq.client.administering.topics import TopicPlace, TopicStatus
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import checked_verbs
from reliable_mq.client.flow import Flow

T = TypeVar("T")


@checked_verbs
class AsyncTopics:
    """Lists, inspects, creates, changes and deletes topics."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def names(self, *, everything: bool = False) -> ClusterReply[list[str]]:
        """Return the topics that the name servers know, sorted.

        Args:
            everything: include topics of brokers and of consumer groups (retries, dead letters).

        Raises:
            RemoteError, Unavailable, ProtocolError: when no name server answers.
        """
        answers = await self._run(topics.names(self._cluster, everything=everything))
        return ClusterReply(sorted(own_of(self._names, answers.value)), answers.failures)

    async def route(self, topic: str) -> list[TopicPlace]:
        """Return the brokers of a topic with their numbers of queues, sorted by name.

        Raises:
            NoRoute: when the name servers do not know it.
            RemoteError, Unavailable, ProtocolError: when none of them answers.
        """
        return await self._run(topics.route(self._cluster, self._names.full_name(topic)))

    async def settings(self, topic: str) -> ClusterReply[dict[str, TopicSettings]]:
        """Return the settings of a topic at each broker, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        return await self._run(topics.settings(self._cluster, self._names.full_name(topic)))

    async def status(self, topic: str) -> ClusterReply[TopicStatus]:
        """Return the offsets of a topic's queues, and when each last got a message.

        Raises:
            NoRoute: when the name servers do not know the topic.
            NotFound: when no broker does.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        return await self._run(topics.status(self._cluster, self._names.full_name(topic)))

    async def consumers(self, topic: str) -> ClusterReply[list[str]]:
        """Return the consumer groups that subscribe to a topic or have offsets in it, sorted.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        answers = await self._run(topics.consumers(self._cluster, self._names.full_name(topic)))
        return ClusterReply(sorted(map(self._names.own_name, answers.value)), answers.failures)

    async def create(
        self,
        topic: str,
        queues: int = QUEUES,
        *,
        permission: str = "rw",
        is_ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Create a topic at all masters; return where, by broker name.

        Brokers that have it with the wanted settings are left alone. Returns when the name servers
        know the topic, so that the next send uses it.

        Args:
            topic: its name.
            queues: number of queues at each broker, for writing and reading.
            permission: "rw", "r", "w" or "none".
            is_ordered: a flag for Apache's tools; ordering keys stay in order without it.
            attributes: Apache's, such as `{"message.type": "FIFO"}`.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be created, but create nothing.

        Raises:
            ConfigurationError: when the name or a setting is invalid.
            UsageError: when a broker has it with other settings; then nothing is done.
            NoRoute: when no broker is known, or the name servers do not learn the topic in time.
            RemoteError, Unavailable, ProtocolError: when no broker creates it.
        """
        wanted = TopicSettings(
            read_queues=queues,
            write_queues=queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=dict(attributes or {}),
        )
        name = self._names.full_name(topic)
        flow = topic_changes.create(self._cluster, name, wanted, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def update(
        self,
        topic: str,
        change: TopicChange,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Change a topic at every broker that has it; return where, by broker name.

        Each broker keeps its own settings that `change` does not contain.

        Args:
            topic: its name.
            change: the new settings.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be changed, but change nothing.

        Raises:
            ConfigurationError: when a setting is invalid.
            NotFound: when no broker has it.
            NoRoute: when the name servers do not learn it in time.
            RemoteError, Unavailable, ProtocolError: when no broker changes it.
        """
        name = self._names.full_name(topic)
        flow = topic_changes.update(self._cluster, name, change, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def delete(self, topic: str, *, dry_run: bool = False) -> ClusterReply[list[str]]:
        """Delete a topic at all brokers and name servers; return where it existed.

        Its messages cannot be read any more. After failures, name servers still know the topic:
        call it again when the brokers are back.

        Args:
            topic: its name.
            dry_run: return where it would be deleted, but delete nothing.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when no broker does it; topics of the brokers
                are refused.
        """
        name = self._names.full_name(topic)
        return await self._run(topic_changes.delete(self._cluster, name, dry_run=dry_run))

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))
