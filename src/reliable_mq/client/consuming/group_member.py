"""What each member of a consumer group tells brokers, and does about what they tell it.

The kinds of consumers differ in what they do with messages, not in this; how they read their
queues anew is theirs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from reliable_mq.client.connecting.membership import ConsumerData, consumer_data
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson


class GroupMember(ABC):
    """A `Member` of a consumer group.

    Args:
        group: which, and its state.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group

    @abstractmethod
    def rebalance_soon(self) -> None:
        """Compute the share of queues anew, now."""

    @abstractmethod
    def on_reset(self, assigned: AssignedQueue) -> None:
        """Read a queue from its `commit_offset`, which was set from outside."""

    @property
    def group_name(self) -> str:
        """The consumer group."""
        return self.group.name

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now, its retry topic's included."""
        started = (assigned.queue for assigned in self.group.assigned if assigned.is_started)
        return self.group.namespace.own_queues(started)

    def consumer_data(self) -> ConsumerData:
        """Return what brokers are told of this member."""
        return consumer_data(self.group)

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Trust no lock and no commit at brokers any more whose connection was lost."""
        self.group.broker_lost(broker_names)
        self.rebalance_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read queues again from other offsets, as an administrator wants it.

        What runs finishes first; then the queue is given back with the new offset and taken anew.
        """
        for queue, offset in offsets.items():
            assigned = self.group.find(queue)
            if assigned is not None and assigned.is_started and not assigned.leaving:
                assigned.freeze(offset)
                self.on_reset(assigned)

    def status(self, topic: str) -> bytes:
        """Return the body that tells an administrator how far each queue of `topic` is done."""
        table = {
            (
                ("brokerName", assigned.queue.broker_name),
                ("queueId", assigned.queue.queue_id),
                ("topic", topic),
            ): assigned.commit_offset
            for assigned in self.group.all_queues
            if assigned.queue.topic == topic and assigned.is_started
        }
        return fastjson.dumps({"messageQueueTable": table})
