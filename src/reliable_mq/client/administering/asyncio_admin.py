"""Administration on an event loop: `client.admin`, with one attribute per kind of object.

Flows in this folder hold all logic. Answers of several brokers are a `ClusterReply`: its `value`,
and `failures` by broker name. A verb raises when no broker has answered.
"""

from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

import msgspec

from reliable_mq.client.administering import groups, members, offset_resets, progress
from reliable_mq.client.administering.asyncio_accounts import AsyncAccounts
from reliable_mq.client.administering.asyncio_messages import AsyncDeadLetters, AsyncMessages
from reliable_mq.client.administering.asyncio_topics import AsyncTopics
from reliable_mq.client.administering.cluster_reply import AdminTarget, ClusterReply, epoch_ms
from reliable_mq.client.administering.groups import GroupChange, GroupSettings
from reliable_mq.client.administering.members import Connection, GroupConnections, MemberState
from reliable_mq.client.administering.offset_resets import END, QueueReset
from reliable_mq.client.administering.own_names import own_of, owned, whole_queue
from reliable_mq.client.administering.progress import GroupProgress
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import checked_verbs
from reliable_mq.client.flow import Flow
from reliable_mq.message import MessageQueue

T = TypeVar("T")


class AsyncAdmin:
    """The administration of a cluster. Made by `AsyncClient`.

    Every verb raises `UsageError` before the client's `start`, `Unavailable` when no name server
    answers, and `ProtocolError` when no answer can be decoded.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        #: the cluster and its name servers
        self.cluster = cluster = AdminTarget(engine.name_servers, engine.routes, engine.settings)
        #: lists, inspects, creates, changes and deletes topics
        self.topics = AsyncTopics(engine, cluster)
        #: consumer groups and their members; producers
        self.groups = AsyncGroups(engine, cluster)
        #: progress and resets of groups' offsets
        self.offsets = AsyncOffsets(engine, cluster)
        #: finds messages
        self.messages = AsyncMessages(engine, cluster)
        #: dead letters of consumer groups
        self.dead_letters = AsyncDeadLetters(engine, cluster)
        #: users of brokers with access control, and their policies
        self.accounts = AsyncAccounts(engine, cluster)


@checked_verbs
class AsyncGroups:
    """Consumer groups and their settings and members; producers."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def all_settings(
        self, *, everything: bool = False
    ) -> ClusterReply[dict[str, dict[str, GroupSettings]]]:
        """Return the settings of all groups, by group and by broker.

        Args:
            everything: also groups that belong to the brokers.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        answers = await self._run(groups.groups(self._cluster, everything=everything))
        names = own_of(self._names, answers.value)
        return ClusterReply(
            {own: answers.value[names[own]] for own in sorted(names)}, answers.failures
        )

    async def settings(self, group: str) -> ClusterReply[dict[str, GroupSettings]]:
        """Return the settings of a group at each broker, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        return await self._run(groups.settings(self._cluster, self._names.full_name(group)))

    async def create(
        self,
        group: str,
        wanted: GroupChange | None = None,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Create a group at all masters; return where, by broker name.

        Brokers that have it with the wanted settings are left alone.

        Args:
            group: its name.
            wanted: its settings; by default those of a new `GroupSettings`.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be created, but create nothing.

        Raises:
            ConfigurationError: when the name is illegal.
            UsageError: when a broker has it with other settings; then nothing is done.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker creates it.
        """
        wanted, name = wanted or GroupChange(), self._names.full_name(group)
        flow = groups.create(self._cluster, name, wanted, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def update(
        self,
        group: str,
        change: GroupChange,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Change a group at every broker that has it; return where, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when no broker changes it.
        """
        name = self._names.full_name(group)
        flow = groups.update(self._cluster, name, change, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def delete(
        self, group: str, *, offsets: bool = False, dry_run: bool = False
    ) -> ClusterReply[list[str]]:
        """Delete a group, its retry topic and dead letters at all brokers; return where it existed.

        Args:
            group: its name.
            offsets: delete its offsets too.
            dry_run: return where it would be deleted, but delete nothing.

        Raises:
            UsageError: when its members are connected: they would create it again.
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        name = self._names.full_name(group)
        flow = groups.delete(self._cluster, name, offsets=offsets, dry_run=dry_run)
        return await self._run(flow)

    async def connections(self, group: str) -> ClusterReply[GroupConnections]:
        """Return the connected members of a group and how it consumes; no members: it is offline.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        answers = await self._run(members.connections(self._cluster, self._names.full_name(group)))
        wanted = answers.value.subscriptions.items()
        subscriptions = {self._names.own_name(topic): expression for topic, expression in wanted}
        value = msgspec.structs.replace(answers.value, subscriptions=subscriptions)
        return ClusterReply(value, answers.failures)

    async def members(self, group: str, *, stack: bool = False) -> ClusterReply[list[MemberState]]:
        """Return the state of each connected member: its queues, and how far they are consumed.

        Failures of members are by client id, those of brokers by broker name.

        Args:
            group: the consumer group.
            stack: request stacks of threads too.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        name = self._names.full_name(group)
        return await self._run(members.members(self._cluster, name, stack=stack))

    async def producers(self, group: str = "") -> ClusterReply[dict[str, tuple[Connection, ...]]]:
        """Return the connected producers by producer group; "": of all groups.

        Raises:
            NotFound: when no producer of the group is connected.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        answers = await self._run(members.producers(self._cluster, self._names.full_name(group)))
        names = own_of(self._names, answers.value)
        return ClusterReply(
            {own: answers.value[names[own]] for own in sorted(names)}, answers.failures
        )

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))


@checked_verbs
class AsyncOffsets:
    """The offsets of consumer groups: progress and resets."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def progress(self, group: str, topic: str = "") -> ClusterReply[GroupProgress]:
        """Return a group's progress by queue, in its topics and its retry topic.

        Args:
            group: the consumer group.
            topic: only this topic; "": all.

        Raises:
            NotFound: when no broker has offsets or settings of the group.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        whole = self._names.full_name
        return await self._run(progress.progress(self._cluster, whole(group), whole(topic)))

    async def reset_to_time(
        self, group: str, topic: str, moment: datetime, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets in a topic to the first messages stored at a time or later.

        Args:
            group: the consumer group; its members may be connected.
            topic: the topic.
            moment: a time with a time zone.
            dry_run: return what would change, but change nothing.

        Raises:
            UsageError: when the time has no time zone, or is before 1970.
            NoRoute: when the name servers do not know the topic.
            NotFound: when the brokers do not know the group.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        return await self._to_time(group, topic, epoch_ms(moment), dry_run=dry_run)

    async def reset_to_start(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets to the beginning of a topic; see `reset_to_time`."""
        return await self._to_time(group, topic, 0, dry_run=dry_run)

    async def reset_to_end(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets to the end of a topic; see `reset_to_time`."""
        return await self._to_time(group, topic, END, dry_run=dry_run)

    async def reset_to_offset(
        self, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
    ) -> QueueReset:
        """Set a group's offset in one queue.

        Args:
            group: the consumer group; its members may be connected.
            queue: the queue.
            offset: offset of the next message for the group.
            dry_run: return what would change, but change nothing.

        Raises:
            UsageError: when the broker or the queue does not exist, or the offset is outside of the
                queue. Also when the group is online at a broker that cannot set a single queue.
            NotFound: when the broker does not know the group.
            RemoteError, Unavailable, ProtocolError: when the broker does not do it.
        """
        name, place = self._names.full_name(group), whole_queue(self._names, queue)
        flow = offset_resets.to_offset(self._cluster, name, place, offset, dry_run=dry_run)
        return await self._run(flow)

    async def clone(
        self, source: str, target: str, topic: str = "", *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Copy one group's offsets to another group.

        Args:
            source: the consumer group to copy from.
            target: the group to copy to; no member of it may be connected.
            topic: only this topic; "": all topics of `source`, except its retry topic.
            dry_run: return what would change, but change nothing.

        Raises:
            UsageError: when members of `target` are connected: their commits would undo it.
            NotFound: when `source` has committed nothing there.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        whole = self._names.full_name
        flow = offset_resets.clone(
            self._cluster, whole(source), whole(target), whole(topic), dry_run=dry_run
        )
        return await self._run(flow)

    async def _to_time(
        self, group: str, topic: str, time_ms: int, *, dry_run: bool
    ) -> ClusterReply[list[QueueReset]]:
        whole = self._names.full_name
        flow = offset_resets.to_time(
            self._cluster, whole(group), whole(topic), time_ms, dry_run=dry_run
        )
        return await self._run(flow)

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))
