"""Administration without an event loop of the caller's own: `Client.admin`.

A table: each verb is the one of `asyncio_admin`, run by the loop in the client's thread. There
stands what it takes, returns, raises and waits for. Only what yields is written here.
"""

from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin, AsyncGroups, AsyncOffsets
from reliable_mq.client.administering.asyncio_messages import AsyncDeadLetters, AsyncMessages
from reliable_mq.client.administering.asyncio_topics import AsyncTopics
from reliable_mq.client.administering.cluster_reply import first_failure
from reliable_mq.client.checked import checked
from reliable_mq.client.documented import documented_by
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX
from reliable_mq.runtime.loop_thread import LoopThread

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

Started = Callable[[], LoopThread]
"""Gives the thread of a client, or raises because it is not started."""


class _Face(Generic[A]):
    """Verbs for threads over the same verbs of a twin that are awaited."""

    def __init__(self, started: Started, twin: A) -> None:
        self._started = started
        self._twin = twin


def _waits(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Face[A], P], R]:
    """Return a verb of the twin as one for threads: with its parameters and its words."""

    @wraps(verb)
    def wait(self: _Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        thread = self._started()
        return thread.run(verb(self._twin, *args, **kwargs))

    return wait


class Topics(_Face[AsyncTopics]):
    """Topics: which there are, where they are, how full; made, changed, deleted."""

    names = _waits(AsyncTopics.names)
    route = _waits(AsyncTopics.route)
    settings = _waits(AsyncTopics.settings)
    status = _waits(AsyncTopics.status)
    consumers = _waits(AsyncTopics.consumers)
    create = _waits(AsyncTopics.create)
    update = _waits(AsyncTopics.update)
    delete = _waits(AsyncTopics.delete)


class Groups(_Face[AsyncGroups]):
    """Consumer groups: their settings and members; producers."""

    all_settings = _waits(AsyncGroups.all_settings)
    settings = _waits(AsyncGroups.settings)
    create = _waits(AsyncGroups.create)
    update = _waits(AsyncGroups.update)
    delete = _waits(AsyncGroups.delete)
    connections = _waits(AsyncGroups.connections)
    members = _waits(AsyncGroups.members)
    producers = _waits(AsyncGroups.producers)


class Offsets(_Face[AsyncOffsets]):
    """How far consumer groups have come, and how that is set."""

    progress = _waits(AsyncOffsets.progress)
    reset_to_time = _waits(AsyncOffsets.reset_to_time)
    reset_to_start = _waits(AsyncOffsets.reset_to_start)
    reset_to_end = _waits(AsyncOffsets.reset_to_end)
    reset_to_offset = _waits(AsyncOffsets.reset_to_offset)
    clone = _waits(AsyncOffsets.clone)


@documented_by(AsyncMessages)
class Messages(_Face[AsyncMessages]):
    """Messages found by their names, keys, places and times."""

    by_offset_id = _waits(AsyncMessages.by_offset_id)
    by_message_id = _waits(AsyncMessages.by_message_id)
    by_key = _waits(AsyncMessages.by_key)
    at = _waits(AsyncMessages.at)
    tracks = _waits(AsyncMessages.tracks)

    def between(
        self, topic: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield what a topic holds between two moments; see `AsyncMessages.between`."""
        scan = self._twin.scan(topic, since, until)
        while (page := self._started().run(self._twin.next_page(scan))) is not None:
            yield from page
        if scan.failures:
            raise first_failure(scan.failures)


@documented_by(AsyncDeadLetters)
class DeadLetters(_Face[AsyncDeadLetters]):
    """Messages that consumer groups gave up: listed, and sent again."""

    groups = _waits(AsyncDeadLetters.groups)
    send_again = _waits(AsyncDeadLetters.send_again)

    def __init__(self, started: Started, twin: AsyncDeadLetters, messages: Messages) -> None:
        super().__init__(started, twin)
        self._messages = messages

    @checked()
    def of_group(
        self, group: str, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the dead letters of a group; see `AsyncDeadLetters.of_group`."""
        return self._messages.between(DEAD_LETTER_PREFIX + group, since, until)


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
