"""Administration on an event loop: `client.admin`, told apart by what is looked after.

Everything that decides lives in the flows of this folder. What several brokers tell is a
`ClusterReply`: its `value`, and `failures` by broker name; a verb raises when nobody has told
anything.
"""

from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

import msgspec

from reliable_mq.client.administering import groups, members, offset_resets, progress
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
    """What one can ask of a cluster, and change in it. Made by `AsyncClient`.

    Every verb raises `UsageError` before the client's `start`, `Unavailable` when no name server
    answers, and `ProtocolError` when the only answers do not read.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        #: whom it asks
        self.cluster = cluster = AdminTarget(engine.name_servers, engine.routes, engine.settings)
        #: which there are, how full; made, changed, deleted
        self.topics = AsyncTopics(engine, cluster)
        #: consumer groups and their members; producers
        self.groups = AsyncGroups(engine, cluster)
        #: how far groups have come, and how that is set
        self.offsets = AsyncOffsets(engine, cluster)
        #: messages found
        self.messages = AsyncMessages(engine, cluster)
        #: messages that consumer groups gave up
        self.dead_letters = AsyncDeadLetters(engine, cluster)


@checked_verbs
class AsyncGroups:
    """Consumer groups: their settings and members; producers."""

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
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        told = await self._run(groups.groups(self._cluster, everything=everything))
        names = own_of(self._names, told.value)
        return ClusterReply({own: told.value[names[own]] for own in sorted(names)}, told.failures)

    async def settings(self, group: str) -> ClusterReply[dict[str, GroupSettings]]:
        """Return what each broker keeps of a group, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        return await self._run(groups.settings(self._cluster, self._names.whole(group)))

    async def create(
        self,
        group: str,
        wanted: GroupChange | None = None,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Make a group at all masters, and return where, by broker name.

        Where it is as it is wanted, nothing is done.

        Args:
            group: its name.
            wanted: its settings; by default those of a new `GroupSettings`.
            brokers: their names, when not all are meant.
            dry_run: say where it would be made, and make nothing.

        Raises:
            ConfigurationError: when the name is illegal.
            UsageError: when a broker has it with other settings; nothing was done.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when nobody makes it.
        """
        wanted, name = wanted or GroupChange(), self._names.whole(group)
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
        """Change a group at every broker that has it, and return where, by broker name.

        Raises:
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when nobody changes it.
        """
        name = self._names.whole(group)
        flow = groups.update(self._cluster, name, change, only=brokers, dry_run=dry_run)
        return await self._run(flow)

    async def delete(
        self, group: str, *, offsets: bool = False, dry_run: bool = False
    ) -> ClusterReply[list[str]]:
        """Delete a group at all brokers, its retry topic and its dead letters; return where it was.

        Args:
            group: its name.
            offsets: forget how far it has come, too.
            dry_run: say where it would be deleted, and delete nothing.

        Raises:
            UsageError: when members of it are connected: they would make it again.
            NotFound: when no broker has it.
            RemoteError, Unavailable, ProtocolError: when nobody does it.
        """
        name = self._names.whole(group)
        flow = groups.delete(self._cluster, name, offsets=offsets, dry_run=dry_run)
        return await self._run(flow)

    async def connections(self, group: str) -> ClusterReply[GroupConnections]:
        """Return who of a group is connected, and how it consumes; nobody: it is offline.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        told = await self._run(members.connections(self._cluster, self._names.whole(group)))
        wanted = told.value.subscriptions.items()
        subscriptions = {self._names.own(topic): expression for topic, expression in wanted}
        value = msgspec.structs.replace(told.value, subscriptions=subscriptions)
        return ClusterReply(value, told.failures)

    async def members(self, group: str, *, stack: bool = False) -> ClusterReply[list[MemberState]]:
        """Return what each connected member of a group says of itself: its queues, how far it is.

        Failures are by client id of members that did not answer, and by name of brokers.

        Args:
            group: the consumer group.
            stack: ask what its threads are doing, too.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker tells.
        """
        name = self._names.whole(group)
        return await self._run(members.members(self._cluster, name, stack=stack))

    async def producers(self, group: str = "") -> ClusterReply[dict[str, tuple[Connection, ...]]]:
        """Return the producers that are connected, by producer group; "": of all groups.

        Raises:
            NotFound: when nobody of the group is connected.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        told = await self._run(members.producers(self._cluster, self._names.whole(group)))
        names = own_of(self._names, told.value)
        return ClusterReply({own: told.value[names[own]] for own in sorted(names)}, told.failures)

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))


@checked_verbs
class AsyncOffsets:
    """How far consumer groups have come, and how that is set."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster
        self._names = engine.namespace

    async def progress(self, group: str, topic: str = "") -> ClusterReply[GroupProgress]:
        """Return how far a group has come in its topics, its retry topic among them, by queue.

        Args:
            group: the consumer group.
            topic: of this topic alone.

        Raises:
            NotFound: when no broker has offsets of the group, nor settings.
            RemoteError, Unavailable, ProtocolError: when nobody tells.
        """
        whole = self._names.whole
        return await self._run(progress.progress(self._cluster, whole(group), whole(topic)))

    async def reset_to_time(
        self, group: str, topic: str, moment: datetime, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group read a topic again, or on, from what was stored at a moment or later.

        Args:
            group: the consumer group; its members may be connected.
            topic: the topic.
            moment: aware of its time zone.
            dry_run: say what would be, and change nothing.

        Raises:
            UsageError: when the moment is in no time zone, or before 1970.
            NoRoute: when the name servers do not know the topic.
            NotFound: when the brokers know no such group.
            RemoteError, Unavailable, ProtocolError: when nobody does it.
        """
        return await self._to_time(group, topic, epoch_ms(moment), dry_run=dry_run)

    async def reset_to_start(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group read all that a topic holds again; see `reset_to_time`."""
        return await self._to_time(group, topic, 0, dry_run=dry_run)

    async def reset_to_end(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group pass over all that a topic holds; see `reset_to_time`."""
        return await self._to_time(group, topic, END, dry_run=dry_run)

    async def reset_to_offset(
        self, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
    ) -> QueueReset:
        """Let a group read one queue again, or on, from an offset.

        Args:
            group: the consumer group; its members may be connected.
            queue: the queue.
            offset: of the next message that the group gets.
            dry_run: say what would be, and change nothing.

        Raises:
            UsageError: when there is no such broker or queue, the queue does not reach from or to
                there, or the group is online at a broker that cannot set one queue of it.
            NotFound: when the broker knows no such group.
            RemoteError, Unavailable, ProtocolError: when the broker does not do it.
        """
        name, place = self._names.whole(group), whole_queue(self._names, queue)
        flow = offset_resets.to_offset(self._cluster, name, place, offset, dry_run=dry_run)
        return await self._run(flow)

    async def clone(
        self, source: str, target: str, topic: str = "", *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group stand where another one stands.

        Args:
            source: the consumer group that is copied.
            target: the one that gets its offsets; nobody of it may be connected.
            topic: in this topic; "": in all that `source` reads, but its retry topic.
            dry_run: say what would be, and change nothing.

        Raises:
            UsageError: when members of `target` are connected: their commits would undo it.
            NotFound: when `source` has committed nothing there.
            RemoteError, Unavailable, ProtocolError: when nobody does it.
        """
        whole = self._names.whole
        flow = offset_resets.clone(
            self._cluster, whole(source), whole(target), whole(topic), dry_run=dry_run
        )
        return await self._run(flow)

    async def _to_time(
        self, group: str, topic: str, time_ms: int, *, dry_run: bool
    ) -> ClusterReply[list[QueueReset]]:
        whole = self._names.whole
        flow = offset_resets.to_time(
            self._cluster, whole(group), whole(topic), time_ms, dry_run=dry_run
        )
        return await self._run(flow)

    async def _run(self, flow: Flow[T]) -> T:
        return owned(self._names, await self._engine.run(flow))
