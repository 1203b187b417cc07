"""Heartbeats: which groups this client belongs to, as brokers want to hear it.

A broker that has not heard one for 120 s, or whose connection ends, strikes the client off and
tells the rest of the group. Source: Apache RocketMQ `HeartbeatData`, `MQClientInstance`.
"""

from collections.abc import Iterable

import msgspec

from reliable_mq.client.consumer_group import ConsumerGroup
from reliable_mq.client.flow import Call
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import UnregisterClientHeader
from reliable_mq.wire.java_hash import java_string_hash

_FROM_WHERE = {
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "last": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


def heartbeat(
    client_id: str, producer_groups: Iterable[str], groups: Iterable[ConsumerGroup]
) -> Command:
    """Return the heartbeat of a client; one that does not send is in no producer group."""
    body = {
        "clientID": client_id,
        "consumerDataSet": [_consumer_data(group) for group in groups],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": name} for name in producer_groups],
        "withoutSub": False,
    }
    return request(RequestCode.HEART_BEAT, None, msgspec.json.encode(body))


def _consumer_data(group: ConsumerGroup) -> dict[str, object]:
    subscription = group.subscription
    return {
        "consumeFromWhere": _FROM_WHERE[subscription.from_where],
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group.name,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": sorted(java_string_hash(tag) for tag in group.tags[topic]),
                "expressionType": "TAG",
                "subString": expression if group.tags[topic] else "*",
                "subVersion": group.version,
                "tagsSet": sorted(group.tags[topic]),
                "topic": topic,
            }
            for topic, expression in subscription.all_topics().items()
        ],
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
