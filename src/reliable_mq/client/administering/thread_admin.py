"""Administration without an event loop of the caller's own: `Client.admin`.

The same verbs as `asyncio_admin`, over a loop in a background thread; what they take, raise and
wait for is said there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin, AsyncGroups, AsyncOffsets
from reliable_mq.client.administering.asyncio_messages import AsyncDeadLetters, AsyncMessages
from reliable_mq.client.administering.asyncio_topics import AsyncTopics
from reliable_mq.client.administering.cluster_reply import ClusterReply, first_failure
from reliable_mq.client.administering.groups import GroupChange, GroupSettings
from reliable_mq.client.administering.members import Connection, GroupConnections, MemberState
from reliable_mq.client.administering.offset_resets import QueueReset
from reliable_mq.client.administering.progress import GroupProgress
from reliable_mq.client.administering.topic_settings import QUEUES, TopicChange, TopicSettings
from reliable_mq.client.administering.topics import TopicPlace, TopicStatus
from reliable_mq.client.administering.tracking import Track
from reliable_mq.client.checked import checked
from reliable_mq.client.documented import documented_by
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX
from reliable_mq.runtime.loop_thread import LoopThread

Started = Callable[[], LoopThread]
"""Gives the thread of a client, or raises because it is not started."""


class Admin:
    """What one can ask of a cluster, and change in it. Made by `Client`. See `AsyncAdmin`."""

    def __init__(self, started: Started, admin: AsyncAdmin) -> None:
        #: which there are, how full; made, changed, deleted
        self.topics = Topics(started, admin.topics)
        #: consumer groups and their members; producers
        self.groups = Groups(started, admin.groups)
        #: how far groups have come, and how that is set
        self.offsets = Offsets(started, admin.offsets)
        #: messages found
        self.messages = Messages(started, admin.messages)
        #: messages that consumer groups gave up
        self.dead_letters = DeadLetters(started, admin.dead_letters, self.messages)


@documented_by(AsyncTopics)
class Topics:
    """Topics: which there are, where they are, how full; made, changed, deleted."""

    def __init__(self, started: Started, topics: AsyncTopics) -> None:
        self._started = started
        self._topics = topics

    def names(self, *, everything: bool = False) -> ClusterReply[list[str]]:
        """Return the topics that the name servers know; see `AsyncTopics.names`."""
        return self._started().run(self._topics.names(everything=everything))

    def route(self, topic: str) -> list[TopicPlace]:
        """Return at which brokers a topic is; see `AsyncTopics.route`."""
        return self._started().run(self._topics.route(topic))

    def settings(self, topic: str) -> ClusterReply[dict[str, TopicSettings]]:
        """Return what each broker keeps of a topic; see `AsyncTopics.settings`."""
        return self._started().run(self._topics.settings(topic))

    def status(self, topic: str) -> ClusterReply[TopicStatus]:
        """Return what the queues of a topic hold; see `AsyncTopics.status`."""
        return self._started().run(self._topics.status(topic))

    def consumers(self, topic: str) -> ClusterReply[list[str]]:
        """Return the consumer groups of a topic; see `AsyncTopics.consumers`."""
        return self._started().run(self._topics.consumers(topic))

    def create(
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
        """Make a topic at all masters; see `AsyncTopics.create`."""
        thread = self._started()
        creating = self._topics.create(
            topic,
            queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=attributes,
            brokers=brokers,
            dry_run=dry_run,
        )
        return thread.run(creating)

    def update(
        self,
        topic: str,
        change: TopicChange,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Change a topic at every broker that has it; see `AsyncTopics.update`."""
        thread = self._started()
        return thread.run(self._topics.update(topic, change, brokers=brokers, dry_run=dry_run))

    def delete(self, topic: str, *, dry_run: bool = False) -> ClusterReply[list[str]]:
        """Delete a topic at all brokers and name servers; see `AsyncTopics.delete`."""
        return self._started().run(self._topics.delete(topic, dry_run=dry_run))


@documented_by(AsyncGroups)
class Groups:
    """Consumer groups: their settings and members; producers."""

    def __init__(self, started: Started, groups: AsyncGroups) -> None:
        self._started = started
        self._groups = groups

    def all_settings(
        self, *, everything: bool = False
    ) -> ClusterReply[dict[str, dict[str, GroupSettings]]]:
        """Return the settings of all groups; see `AsyncGroups.all_settings`."""
        return self._started().run(self._groups.all_settings(everything=everything))

    def settings(self, group: str) -> ClusterReply[dict[str, GroupSettings]]:
        """Return what each broker keeps of a group; see `AsyncGroups.settings`."""
        return self._started().run(self._groups.settings(group))

    def create(
        self,
        group: str,
        wanted: GroupChange | None = None,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Make a group at all masters; see `AsyncGroups.create`."""
        thread = self._started()
        return thread.run(self._groups.create(group, wanted, brokers=brokers, dry_run=dry_run))

    def update(
        self,
        group: str,
        change: GroupChange,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Change a group at every broker that has it; see `AsyncGroups.update`."""
        thread = self._started()
        return thread.run(self._groups.update(group, change, brokers=brokers, dry_run=dry_run))

    def delete(
        self, group: str, *, offsets: bool = False, dry_run: bool = False
    ) -> ClusterReply[list[str]]:
        """Delete a group and its topics at all brokers; see `AsyncGroups.delete`."""
        thread = self._started()
        return thread.run(self._groups.delete(group, offsets=offsets, dry_run=dry_run))

    def connections(self, group: str) -> ClusterReply[GroupConnections]:
        """Return who of a group is connected; see `AsyncGroups.connections`."""
        return self._started().run(self._groups.connections(group))

    def members(self, group: str, *, stack: bool = False) -> ClusterReply[list[MemberState]]:
        """Return what the members of a group say of themselves; see `AsyncGroups.members`."""
        return self._started().run(self._groups.members(group, stack=stack))

    def producers(self, group: str = "") -> ClusterReply[dict[str, tuple[Connection, ...]]]:
        """Return the producers that are connected; see `AsyncGroups.producers`."""
        return self._started().run(self._groups.producers(group))


@documented_by(AsyncOffsets)
class Offsets:
    """How far consumer groups have come, and how that is set."""

    def __init__(self, started: Started, offsets: AsyncOffsets) -> None:
        self._started = started
        self._offsets = offsets

    def progress(self, group: str, topic: str = "") -> ClusterReply[GroupProgress]:
        """Return how far a group has come, by queue; see `AsyncOffsets.progress`."""
        return self._started().run(self._offsets.progress(group, topic))

    def reset_to_time(
        self, group: str, topic: str, moment: datetime, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group read from a moment on; see `AsyncOffsets.reset_to_time`."""
        thread = self._started()
        return thread.run(self._offsets.reset_to_time(group, topic, moment, dry_run=dry_run))

    def reset_to_start(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group read all again; see `AsyncOffsets.reset_to_start`."""
        return self._started().run(self._offsets.reset_to_start(group, topic, dry_run=dry_run))

    def reset_to_end(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group pass over all that is there; see `AsyncOffsets.reset_to_end`."""
        return self._started().run(self._offsets.reset_to_end(group, topic, dry_run=dry_run))

    def reset_to_offset(
        self, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
    ) -> QueueReset:
        """Let a group read one queue from an offset on; see `AsyncOffsets.reset_to_offset`."""
        thread = self._started()
        return thread.run(self._offsets.reset_to_offset(group, queue, offset, dry_run=dry_run))

    def clone(
        self, source: str, target: str, topic: str = "", *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Let a group stand where another one stands; see `AsyncOffsets.clone`."""
        return self._started().run(self._offsets.clone(source, target, topic, dry_run=dry_run))


@documented_by(AsyncMessages)
class Messages:
    """Messages found by their names, keys, places and times."""

    def __init__(self, started: Started, messages: AsyncMessages) -> None:
        self._started = started
        self._messages = messages

    def by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message that a broker calls so; see `AsyncMessages.by_offset_id`."""
        return self._started().run(self._messages.by_offset_id(offset_message_id))

    def by_message_id(self, topic: str, message_id: str) -> ClusterReply[list[ReceivedMessage]]:
        """Return what a topic holds under a message id; see `AsyncMessages.by_message_id`."""
        return self._started().run(self._messages.by_message_id(topic, message_id))

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return the messages of a topic that bear a key; see `AsyncMessages.by_key`."""
        thread = self._started()
        return thread.run(self._messages.by_key(topic, key, since=since, until=until))

    def at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[ReceivedMessage]:
        """Return the messages of a queue from an offset on; see `AsyncMessages.at`."""
        return self._started().run(self._messages.at(queue, offset, count))

    def tracks(self, message: ReceivedMessage) -> ClusterReply[list[Track]]:
        """Return what consumer groups have made of a message; see `AsyncMessages.tracks`."""
        return self._started().run(self._messages.tracks(message))

    def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield what a topic holds between two moments; see `AsyncMessages.between`."""
        scan = self._messages.scan(topic, since, until)
        while (page := self._started().run(self._messages.next_page(scan))) is not None:
            yield from page
        if scan.failures:
            raise first_failure(scan.failures)


@documented_by(AsyncDeadLetters)
class DeadLetters:
    """Messages that consumer groups gave up: listed, and sent again."""

    def __init__(self, started: Started, letters: AsyncDeadLetters, messages: Messages) -> None:
        self._started = started
        self._letters = letters
        self._messages = messages

    def groups(self) -> list[str]:
        """Return the groups that have a dead-letter topic; see `AsyncDeadLetters.groups`."""
        return self._started().run(self._letters.groups())

    @checked()
    def of_group(
        self, group: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the dead letters of a group; see `AsyncDeadLetters.of_group`."""
        return self._messages.between(DEAD_LETTER_PREFIX + group, since, until)

    def send_again(self, group: str, letter: ReceivedMessage) -> None:
        """Let a dead letter come to its group again; see `AsyncDeadLetters.send_again`."""
        self._started().run(self._letters.send_again(group, letter))
