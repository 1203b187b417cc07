"""Requests of tools for connected clients, and for the topics that groups consume.

Source: Apache RocketMQ `AdminBrokerProcessor`, `ProducerManager`, `ConsumerOffsetManager`.
"""

import msgspec

from reliable_mq.broker_core.clients import RegisteredMember
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply


def connection_of(member: RegisteredMember) -> dict[str, object]:
    """Return a member in the format of connection lists."""
    return {
        "clientAddr": member.address,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }


def get_producer_connection_list(state: BrokerState, request: Request) -> Command:
    """GET_PRODUCER_CONNECTION_LIST."""
    name = request.command.ext_fields.get("producerGroup", "")
    members = state.clients.producers().get(name)
    if members is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    body = {"connectionSet": [connection_of(member) for member in members]}
    return reply(request.command, body=fastjson.dumps(body))


def get_all_producer_info(state: BrokerState, request: Request) -> Command:
    """GET_ALL_PRODUCER_INFO."""
    table = {
        group: [
            {
                "clientId": member.client_id,
                "language": member.language,
                "lastUpdateTimestamp": member.last_seen_ms,
                "remoteIP": f"/{member.address}",  # as Java prints a socket's address
                "version": member.version,
            }
            for member in members
        ]
        for group, members in state.clients.producers().items()
    }
    return reply(request.command, body=fastjson.dumps({"data": table}))


def query_topic_consume_by_who(state: BrokerState, request: Request) -> Command:
    """QUERY_TOPIC_CONSUME_BY_WHO: the groups that subscribe to a topic or have offsets in it."""
    topic = request.command.ext_fields.get("topic", "")
    groups = state.clients.subscribers_of(topic) | set(state.offsets.groups_of(topic))
    return reply(request.command, body=fastjson.dumps({"groupList": sorted(groups)}))


def query_topics_by_consumer(state: BrokerState, request: Request) -> Command:
    """QUERY_TOPICS_BY_CONSUMER: the topics in which a group has offsets."""
    body = {
        "brokerAddr": state.config.address,
        "topicList": state.offsets.topics_of(request.command.ext_fields.get("group", "")),
    }
    return reply(request.command, body=fastjson.dumps(body))


def query_subscription_by_consumer(state: BrokerState, request: Request) -> Command:
    """QUERY_SUBSCRIPTION_BY_CONSUMER: a group's subscription to a topic."""
    ext = request.command.ext_fields
    body: dict[str, object] = {name: ext[name] for name in ("group", "topic") if name in ext}
    group = state.clients.consumer_group(ext.get("group", ""))
    subscription = group.subscriptions.get(ext.get("topic", "")) if group else None
    if subscription is not None:
        body["subscriptionData"] = msgspec.to_builtins(subscription)
    return reply(request.command, body=fastjson.dumps(body))
