"""The version of a group's subscription, which must be the newest at all brokers.

A broker keeps the subscription with the highest version and ignores others. So a member whose clock
was set back would get the filter of an older subscription. Source: Apache RocketMQ
`ConsumerGroupInfo`.
"""

from typing import Any

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.flow import Call, Flow, call_all
from reliable_mq.errors import NoRoute, ProtocolError, RemoteError, Unavailable
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request


def raise_version(group: ConsumerGroup) -> Flow[bool]:
    """Make the group's version newer than all that its brokers know; return whether it was older.

    A broker that does not answer, or returns no version, does not prevent the start.
    """
    addresses: dict[str, None] = {}
    for topic in group.subscription.topics:
        try:
            route = yield from group.routes.of(topic)
        except (NoRoute, Unavailable, RemoteError, ProtocolError):
            continue
        for broker in route.brokers.values():
            address = broker.to_read_from(0)
            if address is not None:
                addresses[address] = None
    command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group.name})
    timeout = group.settings.request_timeout_seconds
    answers = yield from call_all([Call(address, command, timeout) for address in addresses])
    known = [_newest_in(answer) for answer in answers if isinstance(answer, Command)]
    newest = max(known, default=-1)
    if newest <= group.version:  # includes versions that this client has sent
        return False
    group.version = newest + 1
    return True


def _newest_in(answer: Command) -> int:
    if answer.code != ResponseCode.SUCCESS:
        return -1
    try:
        table: dict[str, Any] = fastjson.loads(answer.body)["subscriptionTable"]
        return max((int(data["subVersion"]) for data in table.values()), default=-1)
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1
