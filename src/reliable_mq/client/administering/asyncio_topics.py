"""`client.admin.topics` on an event loop: verbs over the flows of `topics` and `topic_changes`."""

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
    """Topics: which there are, where they are, how full; made, changed, deleted."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def names(self, *, everything: bool = False) -> ClusterReply[list[str]]:
        """Return the topics that the name servers know, sorted.

        Args:
            everything: also those of brokers and of consumer groups (retries, dead letters).

        Raises:
            RemoteError, Unavailable, ProtocolError: when no name server tells.
        """
        told = await self._run(topics.names(self._cluster, everything=everything))
        return ClusterReply(sorted(own_of(self._names, told.value)), told.failures)

    async def route(self, topic: str) -> list[TopicPlace]:
        """Return at which brokers a topic is, and with how many queues, by their names.

        Raises:
            NoRoute: when the name servers do not know it.
            RemoteError, Unavailable, ProtocolError: when none of them tells.
        """
        return await self._run(topics.route(self._cluster, self._names.whole(topic)))

    async def settings(self, topic: str) -> ClusterReply[dict[str, TopicSettings]]:
        """Return what each broker keeps of a topic, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        return await self._run(topics.settings(self._cluster, self._names.whole(topic)))

    async def status(self, topic: str) -> ClusterReply[TopicStatus]:
        """Return what the queues of a topic hold, and when each last grew.

        Raises:
            NoRoute: when the name servers do not know the topic.
            NotFound: when no broker does.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        return await self._run(topics.status(self._cluster, self._names.whole(topic)))

    async def consumers(self, topic: str) -> ClusterReply[list[str]]:
        """Return the consumer groups that subscribe to a topic or have offsets in it, sorted.

        Raises:
            NoRoute: when the name servers do not know the topic.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        told = await self._run(topics.consumers(self._cluster, self._names.whole(topic)))
        return ClusterReply(sorted(map(self._names.own, told.value)), told.failures)

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
        """Make a topic at all masters, and return where, by broker name.

        Where it is as it is wanted, nothing is done. Returns when the name servers tell of it, so
        that the next send uses it.

        Args:
            topic: its name.
            queues: how many at each broker, to write and to read.
            permission: "rw", "r", "w" or "none".
            is_ordered: a mark for Apache's tools; ordering keys are kept in order without it.
            attributes: Apache's, such as `{"message.type": "FIFO"}`.
            brokers: their names, when not all are meant.
            dry_run: say where it would be made, and make nothing.

        Raises:
            ConfigurationError: when the name is illegal, or a setting.
            UsageError: when a broker has it with other settings; nothing was done.
            NoRoute: when no broker is known, or the name servers do not hear of the topic in time.
            RemoteError, Unavailable, ProtocolError: when nobody makes it.
        """
        wanted = TopicSettings(
            read_queues=queues,
            write_queues=queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=dict(attributes or {}),
        )
        name = self._names.whole(topic)
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
        """Change a topic at every broker that has it, and return where, by broker name.

        Each keeps of its own settings what the change does not name.

        Args:
            topic: its name.
            change: what shall be otherwise.
            brokers: their names, when not all are meant.
            dry_run: say where it would be changed, and change nothing.

        Raises:
            ConfigurationError: when a setting is none.
            NotFound: when no broker has it.
            NoRoute: when the name servers do not hear of it in time.
            RemoteError, Unavailable, ProtocolError: when nobody changes it.
        """
        name = self._names.whole(topic)
        flow = topic_changes.update(self._cluster, name, change, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def delete(self, topic: str, *, dry_run: bool = False) -> ClusterReply[list[str]]:
        """Delete a topic at all brokers and name servers, and return where it was.

        Its messages are not readable any more. With failures name servers still know it: call it
        again when the brokers are back.

        Args:
            topic: its name.
            dry_run: say where it would be deleted, and delete nothing.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when nobody does it; a topic of the brokers
                themselves is refused.
        """
        name = self._names.whole(topic)
        return await self._run(topic_changes.delete(self._cluster, name, dry_run=dry_run))

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))
