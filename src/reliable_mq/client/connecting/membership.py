"""Membership: members of groups, and the requests that register and unregister them at brokers.

A broker removes a client that has sent no heartbeat for 120 s, or whose connection ends. It then
notifies the other members. Source: Apache RocketMQ `HeartbeatData`, `MQClientInstance`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import subscription_data
from reliable_mq.client.flow import Call
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.headers import UnregisterClientHeader

ConsumerData = dict[str, Any]
"""One consumer group in a heartbeat, as plain values for JSON."""

_FROM_WHERE = {
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "last": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class Member(Protocol):
    """A member of a consumer group. It receives brokers' notifications for the group."""

    @property
    def group_name(self) -> str:
        """The consumer group."""

    def consumer_data(self) -> ConsumerData:
        """Return its part of a heartbeat; only `subscriptionDataSet` may be omitted."""

    def rebalance_soon(self) -> None:
        """Rebalance soon: a member has joined or left."""

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Distrust the state that these brokers have for this member: the connection has ended."""

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue to read these queues at other offsets, on an administrator's request."""

    def status(self, topic: str) -> bytes:
        """Return the body of a reply with the consumed offset of each queue of `topic`."""


def consumer_data(group: ConsumerGroup) -> ConsumerData:
    """Return a member's part of a heartbeat."""
    return {
        "consumeFromWhere": _FROM_WHERE[group.subscription.from_where],
        "consumeType": "CONSUME_ACTIVELY" if group.polled else "CONSUME_PASSIVELY",
        "groupName": group.name,
        "messageModel": "BROADCASTING" if group.subscription.broadcasting else "CLUSTERING",
        "subscriptionDataSet": [subscription_data(group, topic) for topic in group.filters],
        "unitMode": False,
    }


def unregister_calls(
    client_id: str,
    addresses: Iterable[str],
    timeout: float,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
) -> list[Call]:
    """Return the calls that unregister a client at once, so that other members take its queues."""
    header = UnregisterClientHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    return [
        Call(address, request(RequestCode.UNREGISTER_CLIENT, header.to_ext()), timeout)
        for address in addresses
    ]
