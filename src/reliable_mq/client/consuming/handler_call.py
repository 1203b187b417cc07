"""One handler call: its messages, and whether its outcomes count, also after it hung.

Receives the messages that a worker task took. Says which of them the call may still settle.
It must not know tasks and threads.
"""

from collections.abc import Sequence
from operator import attrgetter

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.message import MessageQueue, ReceivedMessage

_queue_of = attrgetter("queue")
_properties_of = attrgetter("properties")


class HandlerCall:
    """The messages of one handler call. It decides whether its outcomes count, also after it hung.

    RUNNING --limit--> OVERDUE --cannot be stopped--> BYPASSED
       |                  |                              |
       +------ends--------+----ends: its outcomes count--+----ends: its outcomes do not count for
                                                              messages that were handed on meanwhile

    It must not know tasks and threads.
    K6: a message is settled by the call that took it, or handed on to another call, but not both.

    Args:
        group: the group of the messages.
        messages: the messages that the handler gets.
        begun: when they were taken, in seconds of a monotonic clock.
    """

    __slots__ = (
        *("_handed_on", "_homes", "begun", "has_ended", "is_bypassed", "is_overdue"),
        *("_properties", "goes_on", "is_called", "messages"),
    )

    def __init__(
        self, group: ConsumerGroup, messages: Sequence[ReceivedMessage], begun: float
    ) -> None:
        self.messages = tuple(messages)  # a tuple: the handler may change its own list
        self.begun = begun
        self.is_overdue = False  # it takes longer than its limit
        self.is_bypassed = False  # no task waits for it any more: another worker task replaces it
        self.is_called = False  # the handler is called, after a wait for a loop turn
        self.has_ended = False  # the handler has ended; its messages may still be unsettled
        self.goes_on = False  # it was cancelled, but a thread is still in the handler
        self._homes: dict[MessageQueue, AssignedQueue | None] = {}
        for queue in map(_queue_of, messages):
            if queue not in self._homes:
                self._homes[queue] = group.find(queue)
        self._handed_on: set[tuple[MessageQueue, int]] | None = None
        self._properties: list[dict[str, str]] = list(map(dict.copy, map(_properties_of, messages)))

    @property
    def released_count(self) -> int:
        """Number of messages that were handed on because the call took too long."""
        return len(self._handed_on or ())

    @property
    def ids(self) -> str:
        """The first ids of the messages, for a log."""
        ids = [message.message_id for message in self.messages[:3]]
        return ", ".join(ids) + (" …" if len(self.messages) > len(ids) else "")

    def queue_of(self, message: ReceivedMessage) -> AssignedQueue | None:
        """Return the queue of a message; None when the call's outcome does not count for it.

        It does not count after the message was handed on, or its queue given back. That queue may
        have been assigned again since, with the same message. Also then the outcome does not count.
        """
        if self._handed_on and (message.queue, message.queue_offset) in self._handed_on:
            return None
        assigned = self._homes[message.queue]
        return None if assigned is None or assigned.is_given_back else assigned

    def restore(self) -> None:
        """Restore the messages' original properties.

        Changes by the handler must not appear in another attempt or in a dead letter.
        """
        for message, properties in zip(self.messages, self._properties, strict=True):
            if message.properties != properties:
                message.properties.clear()
                message.properties.update(properties)

    def is_over(self, limit: float, now: float) -> bool:
        """Return whether the handler has run for `limit` seconds or longer."""
        return self.is_called and not self.has_ended and now - self.begun >= limit

    def release_unfinished(self) -> list[tuple[AssignedQueue, ReceivedMessage]]:
        """Remove the messages that may run twice from the call, and return them, to be settled.

        Messages with an ordering key stay: no other handler may start their key meanwhile.
        """
        taken = []
        for message in self.messages:
            assigned = self.queue_of(message)
            if assigned is not None and assigned.may_run_twice(message.queue_offset):
                taken.append((assigned, message))
        self._handed_on = (self._handed_on or set()) | {
            (message.queue, message.queue_offset) for _, message in taken
        }
        return taken
