"""Filters of a subscription: by tags, or by an SQL92 expression that brokers evaluate.

It receives a subscription, returns its filters for heartbeats and pulls, and asks brokers whether
they support them. Source: Apache RocketMQ `FilterAPI`, `MQClientInstance.checkClientInBroker`.
"""

import msgspec

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Sql
from reliable_mq.client.flow import Flow, call
from reliable_mq.errors import (
    ConfigurationError,
    NoRoute,
    ProtocolError,
    RemoteError,
    Unavailable,
)
from reliable_mq.names import EVERY_TAG
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.remote_faults import remote_error
from reliable_mq.wire.subscription_row import subscription_row


def expression_of(group: ConsumerGroup, topic: str) -> str:
    """Return the group's filter for `topic`, for brokers."""
    wanted = group.filters[topic]
    if isinstance(wanted, Sql):
        return wanted.expression
    return wanted if group.tags[topic] else EVERY_TAG


def subscription_data(group: ConsumerGroup, topic: str) -> dict[str, object]:
    """Return the part of a heartbeat for one topic of the group."""
    kind, tags = group.expression_types[topic], group.tags[topic]
    return subscription_row(topic, expression_of(group, topic), kind, tags, group.version)


def check_filters(group: ConsumerGroup) -> Flow[None]:
    """Ask every broker of a topic with an SQL92 filter whether it supports the expression.

    A topic that does not exist yet, or a silent broker, does not prevent the start. If a pull is
    refused later, the log has the error.

    Raises:
        ConfigurationError: when a broker refuses, with its text: the expression is invalid, or
            `enablePropertyFilter` is off.
    """
    for topic, wanted in group.subscription.topics.items():
        if not isinstance(wanted, Sql):
            continue
        try:
            route = yield from group.routes.of(topic)
        except (NoRoute, Unavailable, RemoteError, ProtocolError):
            continue
        body = {
            "clientId": group.client_id,
            "group": group.name,
            "subscriptionData": subscription_data(group, topic),
        }
        for broker in route.brokers.values():
            address = broker.to_read_from(0)
            if address is None:
                continue
            command = request(RequestCode.CHECK_CLIENT_CONFIG, None, msgspec.json.encode(body))
            try:
                reply = yield from call(address, command, group.settings.request_timeout_seconds)
            except Unavailable:
                continue
            if reply.code:
                raise ConfigurationError(
                    f"broker {broker.name} cannot filter topic {topic} for group {group.name} by"
                    f" {wanted.expression!r}: {remote_error(reply.code, reply.remark)}"
                )
