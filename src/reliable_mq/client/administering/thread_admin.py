"""Administration for programs without an event loop: `Client.admin`.

A table of the verbs of `asyncio_admin`, which the loop of the client's thread runs. Arguments,
results and errors are described there. Only generators are written here.
"""

from collections.abc import Iterator
from datetime import datetime

from reliable_mq.client.administering.asyncio_accounts import AsyncAccounts
from reliable_mq.client.administering.asyncio_admin import AsyncAdmin, AsyncGroups, AsyncOffsets
from reliable_mq.client.administering.asyncio_messages import AsyncDeadLetters, AsyncMessages
from reliable_mq.client.administering.asyncio_topics import AsyncTopics
from reliable_mq.client.administering.cluster_reply import first_failure
from reliable_mq.client.checked import checked
from reliable_mq.client.documented import documented_by
from reliable_mq.client.thread_face import Started, ThreadFace, waits
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX


class Topics(ThreadFace[AsyncTopics]):
    """Lists, inspects, creates, changes and deletes topics."""

    names = waits(AsyncTopics.names)
    route = waits(AsyncTopics.route)
    settings = waits(AsyncTopics.settings)
    status = waits(AsyncTopics.status)
    consumers = waits(AsyncTopics.consumers)
    create = waits(AsyncTopics.create)
    update = waits(AsyncTopics.update)
    delete = waits(AsyncTopics.delete)


class Groups(ThreadFace[AsyncGroups]):
    """Consumer groups and their settings and members; producers."""

    all_settings = waits(AsyncGroups.all_settings)
    settings = waits(AsyncGroups.settings)
    create = waits(AsyncGroups.create)
    update = waits(AsyncGroups.update)
    delete = waits(AsyncGroups.delete)
    connections = waits(AsyncGroups.connections)
    members = waits(AsyncGroups.members)
    producers = waits(AsyncGroups.producers)


class Offsets(ThreadFace[AsyncOffsets]):
    """The offsets of consumer groups: progress and resets."""

    progress = waits(AsyncOffsets.progress)
    reset_to_time = waits(AsyncOffsets.reset_to_time)
    reset_to_start = waits(AsyncOffsets.reset_to_start)
    reset_to_end = waits(AsyncOffsets.reset_to_end)
    reset_to_offset = waits(AsyncOffsets.reset_to_offset)
    clone = waits(AsyncOffsets.clone)


@documented_by(AsyncMessages)
class Messages(ThreadFace[AsyncMessages]):
    """Finds messages by id, key, place and time."""

    by_offset_id = waits(AsyncMessages.by_offset_id)
    by_message_id = waits(AsyncMessages.by_message_id)
    by_key = waits(AsyncMessages.by_key)
    at = waits(AsyncMessages.at)
    tracks = waits(AsyncMessages.tracks)

    def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a topic between two times; see `AsyncMessages.between`."""
        scan = self._twin.scan(topic, since, until)
        while (page := self._started().run(self._twin.next_page(scan))) is not None:
            yield from page
        if scan.failures:
            raise first_failure(scan.failures)


@documented_by(AsyncDeadLetters)
class DeadLetters(ThreadFace[AsyncDeadLetters]):
    """Dead letters of consumer groups: lists them, and sends them again."""

    groups = waits(AsyncDeadLetters.groups)
    send_again = waits(AsyncDeadLetters.send_again)

    def __init__(self, started: Started, twin: AsyncDeadLetters, messages: Messages) -> None:
        super().__init__(started, twin)
        self._messages = messages

    @checked()
    def of_group(
        self, group: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the dead letters of a group; see `AsyncDeadLetters.of_group`."""
        return self._messages.between(DEAD_LETTER_PREFIX + group, since, until)


class Accounts(ThreadFace[AsyncAccounts]):
    """Users of brokers with access control, and their policies."""

    all = waits(AsyncAccounts.all)
    add = waits(AsyncAccounts.add)
    change = waits(AsyncAccounts.change)
    grant = waits(AsyncAccounts.grant)
    revoke = waits(AsyncAccounts.revoke)
    remove = waits(AsyncAccounts.remove)


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
        #: users of brokers with access control, and their policies
        self.accounts = Accounts(started, admin.accounts)
