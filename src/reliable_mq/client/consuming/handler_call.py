"""One call of a handler: which messages it has the say of, and what happens when it hangs.

    RUNNING --limit--> OVERDUE --cannot be stopped--> BYPASSED
       |                  |                              |
       +------ends--------+----ends: its word counts-----+----ends: of what was handed on meanwhile
                                                              its word counts for nothing

Receives messages and times; hands on what is to be settled without the handler. Refuses to know
tasks and threads.
"""

from collections.abc import Sequence

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.message import MessageQueue, ReceivedMessage


class HandlerCall:
    """The messages of one handler call.

    K6: a message is settled by the call that took it, or handed on without it, not both.

    Args:
        group: where the messages were taken.
        messages: what the handler got.
        begun: when they were taken, in seconds of a clock that never jumps.
    """

    __slots__ = (
        *("_handed_on", "_homes", "begun", "has_ended", "is_bypassed", "is_overdue"),
        *("_properties", "goes_on", "is_called", "messages"),
    )

    def __init__(
        self, group: ConsumerGroup, messages: Sequence[ReceivedMessage], begun: float
    ) -> None:
        self.messages = tuple(messages)  # what a handler does to it is nothing to us
        self.begun = begun
        self.is_overdue = False  # it took longer than it may
        self.is_bypassed = False  # nobody waits for it any more: another hand takes its place
        self.is_called = False  # the handler is; before, its hand waits for a turn of the loop
        self.has_ended = False  # the handler has; the messages may be about to be settled
        self.goes_on = False  # it was cancelled, but a thread is in the handler
        self._homes = {message.queue: group.find(message.queue) for message in messages}
        self._handed_on: set[tuple[MessageQueue, int]] | None = None
        self._properties = [message.properties.copy() for message in self.messages]

    @property
    def handed_on(self) -> int:
        """How many messages the call has no say of any more, because it took too long."""
        return len(self._handed_on or ())

    @property
    def ids(self) -> str:
        """The first ids of the messages, for a log."""
        ids = [message.message_id for message in self.messages[:3]]
        return ", ".join(ids) + (" …" if len(self.messages) > len(ids) else "")

    def home(self, message: ReceivedMessage) -> AssignedQueue | None:
        """Return the queue that a message was taken from; None when the call has no say of it.

        So it is when the message was handed on, or its queue given back. That one may have come
        again since: then it holds the message once more, and the old call's word counts for
        nothing.
        """
        if self._handed_on and (message.queue, message.queue_offset) in self._handed_on:
            return None
        assigned = self._homes[message.queue]
        return None if assigned is None or assigned.is_given_back else assigned

    def restore(self) -> None:
        """Give the messages the properties that they came with.

        What a handler made of them is for no other attempt, and no dead letter, to see.
        """
        for message, properties in zip(self.messages, self._properties, strict=True):
            if message.properties != properties:
                message.properties.clear()
                message.properties.update(properties)

    def is_over(self, limit: float, now: float) -> bool:
        """Say whether the handler runs longer than `limit` seconds."""
        return self.is_called and not self.has_ended and now - self.begun >= limit

    def hand_on(self) -> list[tuple[AssignedQueue, ReceivedMessage]]:
        """Take from the call the say of what may run twice, and return that, to be settled.

        What has an ordering key stays: nobody may begin with the key while the handler runs.
        """
        taken = []
        for message in self.messages:
            assigned = self.home(message)
            if assigned is not None and assigned.may_run_twice(message.queue_offset):
                taken.append((assigned, message))
        self._handed_on = (self._handed_on or set()) | {
            (message.queue, message.queue_offset) for _, message in taken
        }
        return taken
