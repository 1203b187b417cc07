"""Administration for programs without an event loop: `Client.admin`.

It has the same verbs as `asyncio_admin`, run on a loop in a background thread. Arguments, errors
and results are described there.
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
"""Returns the thread of a client, or raises if the client is not started."""


class Admin:
    """The administration of a cluster. Made by `Client`. See `AsyncAdmin`."""

    def __init__(self, started: Started, admin: AsyncAdmin) -> None:
        #: lists, inspects, creates, changes and deletes topics
        self.topics = Topics(started, admin.topics)
        #: consumer groups and their members; producers
        self.groups = Groups(started, admin.groups)
        #: progress and resets of groups' offsets
        self.offsets = Offsets(started, admin.offsets)
        #: finds messages
        self.messages = Messages(started, admin.messages)
        #: dead letters of consumer groups
        self.dead_letters = DeadLetters(started, admin.dead_letters, self.messages)


@documented_by(AsyncTopics)
class Topics:
    """Lists, inspects, creates, changes and deletes topics."""

    def __init__(self, started: Started, topics: AsyncTopics) -> None:
        self._started = started
        self._topics = topics

    def names(self, *, everything: bool = False) -> ClusterReply[list[str]]:
        """Return the topics that the name servers know; see `AsyncTopics.names`."""
        return self._started().run(self._topics.names(everything=everything))

    def route(self, topic: str) -> list[TopicPlace]:
        """Return the brokers of a topic; see `AsyncTopics.route`."""
        return self._started().run(self._topics.route(topic))

    def settings(self, topic: str) -> ClusterReply[dict[str, TopicSettings]]:
        """Return the settings of a topic at each broker; see `AsyncTopics.settings`."""
        return self._started().run(self._topics.settings(topic))

    def status(self, topic: str) -> ClusterReply[TopicStatus]:
        """Return the offsets of a topic's queues; see `AsyncTopics.status`."""
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
        """Create a topic at all masters; see `AsyncTopics.create`."""
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
    """Consumer groups and their settings and members; producers."""

    def __init__(self, started: Started, groups: AsyncGroups) -> None:
        self._started = started
        self._groups = groups

    def all_settings(
        self, *, everything: bool = False
    ) -> ClusterReply[dict[str, dict[str, GroupSettings]]]:
        """Return the settings of all groups; see `AsyncGroups.all_settings`."""
        return self._started().run(self._groups.all_settings(everything=everything))

    def settings(self, group: str) -> ClusterReply[dict[str, GroupSettings]]:
        """Return the settings of a group at each broker; see `AsyncGroups.settings`."""
        return self._started().run(self._groups.settings(group))

    def create(
        self,
        group: str,
        wanted: GroupChange | None = None,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Create a group at all masters; see `AsyncGroups.create`."""
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
        """Return the connected members of a group; see `AsyncGroups.connections`."""
        return self._started().run(self._groups.connections(group))

    def members(self, group: str, *, stack: bool = False) -> ClusterReply[list[MemberState]]:
        """Return the state of each connected member; see `AsyncGroups.members`."""
        return self._started().run(self._groups.members(group, stack=stack))

    def producers(self, group: str = "") -> ClusterReply[dict[str, tuple[Connection, ...]]]:
        """Return the connected producers; see `AsyncGroups.producers`."""
        return self._started().run(self._groups.producers(group))


@documented_by(AsyncOffsets)
class Offsets:
    """The offsets of consumer groups: progress and resets."""

    def __init__(self, started: Started, offsets: AsyncOffsets) -> None:
        self._started = started
        self._offsets = offsets

    def progress(self, group: str, topic: str = "") -> ClusterReply[GroupProgress]:
        """Return a group's progress by queue; see `AsyncOffsets.progress`."""
        return self._started().run(self._offsets.progress(group, topic))

    def reset_to_time(
        self, group: str, topic: str, moment: datetime, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets to those of a time; see `AsyncOffsets.reset_to_time`."""
        thread = self._started()
        return thread.run(self._offsets.reset_to_time(group, topic, moment, dry_run=dry_run))

    def reset_to_start(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets to a topic's beginning; see `AsyncOffsets.reset_to_start`."""
        return self._started().run(self._offsets.reset_to_start(group, topic, dry_run=dry_run))

    def reset_to_end(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Set a group's offsets to a topic's end; see `AsyncOffsets.reset_to_end`."""
        return self._started().run(self._offsets.reset_to_end(group, topic, dry_run=dry_run))

    def reset_to_offset(
        self, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
    ) -> QueueReset:
        """Set a group's offset in one queue; see `AsyncOffsets.reset_to_offset`."""
        thread = self._started()
        return thread.run(self._offsets.reset_to_offset(group, queue, offset, dry_run=dry_run))

    def clone(
        self, source: str, target: str, topic: str = "", *, dry_run: bool = False
    ) -> ClusterReply[list[QueueReset]]:
        """Copy one group's offsets to another group; see `AsyncOffsets.clone`."""
        return self._started().run(self._offsets.clone(source, target, topic, dry_run=dry_run))


@documented_by(AsyncMessages)
class Messages:
    """Finds messages by id, key, place and time."""

    def __init__(self, started: Started, messages: AsyncMessages) -> None:
        self._started = started
        self._messages = messages

    def by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message with this offset id; see `AsyncMessages.by_offset_id`."""
        return self._started().run(self._messages.by_offset_id(offset_message_id))

    def by_message_id(self, topic: str, message_id: str) -> ClusterReply[list[ReceivedMessage]]:
        """Return a topic's messages with a message id; see `AsyncMessages.by_message_id`."""
        return self._started().run(self._messages.by_message_id(topic, message_id))

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> ClusterReply[list[ReceivedMessage]]:
        """Return the messages of a topic with a key; see `AsyncMessages.by_key`."""
        thread = self._started()
        return thread.run(self._messages.by_key(topic, key, since=since, until=until))

    def at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[ReceivedMessage]:
        """Return messages of a queue, beginning at an offset; see `AsyncMessages.at`."""
        return self._started().run(self._messages.at(queue, offset, count))

    def tracks(self, message: ReceivedMessage) -> ClusterReply[list[Track]]:
        """Return a message's state in each consumer group; see `AsyncMessages.tracks`."""
        return self._started().run(self._messages.tracks(message))

    def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a topic between two times; see `AsyncMessages.between`."""
        scan = self._messages.scan(topic, since, until)
        while (page := self._started().run(self._messages.next_page(scan))) is not None:
            yield from page
        if scan.failures:
            raise first_failure(scan.failures)


@documented_by(AsyncDeadLetters)
class DeadLetters:
    """Dead letters of consumer groups: lists them, and sends them again."""

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
        """Deliver a dead letter again to its group only; see `AsyncDeadLetters.send_again`."""
        self._started().run(self._letters.send_again(group, letter))
