"""Membership: what belongs to a group, and how brokers hear and forget it.

A broker that has not heard a client for 120 s, or whose connection ends, strikes it off and tells
the rest of its groups. Source: Apache RocketMQ `HeartbeatData`, `MQClientInstance`.
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
"""One consumer group in a heartbeat: plain values, as they go into its JSON."""

_FROM_WHERE = {
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "last": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class Member(Protocol):
    """What makes a client a member of a consumer group, and hears what brokers say to the group."""

    @property
    def group_name(self) -> str:
        """The consumer group."""

    def consumer_data(self) -> ConsumerData:
        """Return what brokers are told of it; only `subscriptionDataSet` may be left out."""

    def rebalance_soon(self) -> None:
        """Compute the share of queues anew: a member came or went."""

    def broker_lost(self, broker_names: Iterable[str]) -> None:
        """Mistrust what these brokers keep for a member: the connection to them has ended."""

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read queues again from other offsets, as an administrator wants it."""

    def status(self, topic: str) -> bytes:
        """Return the body that tells an administrator how far each queue of `topic` is done."""


def consumer_data(group: ConsumerGroup) -> ConsumerData:
    """Return what a heartbeat says of a member."""
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
    """Return the calls that take a client out of a group at once, so that others take over."""
    header = UnregisterClientHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    return [
        Call(address, request(RequestCode.UNREGISTER_CLIENT, header.to_ext()), timeout)
        for address in addresses
    ]
