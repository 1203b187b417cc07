"""The common part of all consumers: answers brokers about the member, and obeys their requests.

The kinds of consumers differ in how they use messages and in how they continue to read queues.
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
        group: the group's state.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group

    @abstractmethod
    def rebalance_soon(self) -> None:
        """Rebalance now."""

    @abstractmethod
    def on_reset(self, assigned: AssignedQueue) -> None:
        """Continue to read a queue at its `commit_offset`, which a broker has set."""

    @property
    def group_name(self) -> str:
        """The consumer group."""
        return self.group.name

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now, including its retry topic's."""
        started = (assigned.queue for assigned in self.group.assigned if assigned.is_started)
        return self.group.namespace.own_queues(started)

    def consumer_data(self) -> ConsumerData:
        """Return this member's part of a heartbeat."""
        return consumer_data(self.group)

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Distrust locks and commits at brokers whose connection was lost."""
        self.group.broker_lost(broker_names)
        self.rebalance_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue to read these queues at other offsets, on an administrator's request.

        Running messages finish first. Then the queue is given back with the new offset, and
        assigned again.
        """
        for queue, offset in offsets.items():
            assigned = self.group.find(queue)
            if assigned is not None and assigned.is_started and not assigned.leaving:
                assigned.freeze(offset)
                self.on_reset(assigned)

    def status(self, topic: str) -> bytes:
        """Return the body of a reply with the consumed offset of each queue of `topic`."""
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
