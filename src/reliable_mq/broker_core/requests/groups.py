"""Heartbeats, members of groups, and settings of groups.

Source: Apache RocketMQ `ClientManageProcessor`, `ConsumerManageProcessor`, `AdminBrokerProcessor`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.clients import ConsumerData, RegisteredMember, SubscriptionData
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.json_rows import plain_json
from reliable_mq.broker_core.names import group_fault
from reliable_mq.broker_core.needed_topics import ensure_retry_topic
from reliable_mq.broker_core.requests.connections import connection_of
from reliable_mq.broker_core.requests.consumer_rules import forget_modes
from reliable_mq.broker_core.requests.group_attributes import altered
from reliable_mq.broker_core.requests.refusal import (
    GROUPS_MAX,
    GROUPS_OF_CONNECTION_MAX,
    RequestRefused,
    body_of,
    refuse_above,
    table_full,
)
from reliable_mq.broker_core.requests.subscription import check_filter, refuse_too_large
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.decodable import decodable
from reliable_mq.limits import QUEUES_MAX, ROWS_MAX, SUBSCRIPTIONS_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import DeleteGroupHeader, UnregisterClientHeader
from reliable_mq.wire.peer_texts import read_json

_TOO_MUCH = "the broker has no room for more groups and subscriptions; retry later"
_UNIT_SUBSCRIBES = 2  # a topic's system flag: a unit subscribes to it


class _ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


@decodable
class _Heartbeat(msgspec.Struct):
    """The fields of a heartbeat that are used here.

    A heartbeat with a fingerprint has version 2: it may omit the subscriptions.
    """

    client_id: str = msgspec.field(name="clientID")
    producers: list[_ProducerData] | None = msgspec.field(name="producerDataSet", default=None)
    consumers: list[ConsumerData] | None = msgspec.field(name="consumerDataSet", default=None)
    fingerprint: int = msgspec.field(name="heartbeatFingerprint", default=0)
    without_subscriptions: bool = msgspec.field(name="withoutSub", default=False)


def heart_beat(state: BrokerState, request: Request) -> Command:
    """HEART_BEAT."""
    command = request.command
    beat = msgspec.convert(read_json(body_of(command)), _Heartbeat, strict=False)
    refuse_above(len(beat.consumers or ()) + len(beat.producers or ()), GROUPS_MAX, "groups")
    names = {each.group_name for each in (*(beat.consumers or ()), *(beat.producers or ()))}
    names |= state.clients.groups_of(request.connection.id)
    refuse_above(len(names), GROUPS_OF_CONNECTION_MAX, "groups behind one connection")
    subscriptions = [
        item for consumer in beat.consumers or () for item in consumer.subscription_data_set or ()
    ]
    refuse_above(len(subscriptions), SUBSCRIPTIONS_MAX, "subscriptions")
    for subscription in subscriptions:
        refuse_too_large(subscription)
    member = RegisteredMember(
        request.connection.id,
        beat.client_id,
        command.language,
        command.version,
        request.now_ms,
        request.connection.address,
        request.user,
    )
    _refuse_foreign(state, member)
    producers = [producer.group_name for producer in beat.producers or ()]
    keeps = beat.fingerprint != 0 and beat.without_subscriptions
    if not state.clients.has_room(
        member, producers, beat.consumers or (), keeps_subscriptions=keeps
    ):
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, _TOO_MUCH)
    is_changed = beat.fingerprint == 0
    for consumer in beat.consumers or []:
        if _register_consumer(state, consumer, member, request, keeps=keeps):
            is_other = state.clients.note_fingerprint(consumer.group_name, beat.fingerprint)
            is_changed = is_changed or is_other
    for name in producers:
        state.clients.register_producer(name, member)
    ext = {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true" if is_changed else "false",
    }
    return reply(command, ext=ext)


def _refuse_foreign(state: BrokerState, member: RegisteredMember) -> None:
    """Refuse a client id that a producer of another user has: it would get that one's replies."""
    user = state.clients.user_of_producer(member.client_id)
    if user is not None and user != member.user:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"the client id {member.client_id} is another user's"
        )


def _register_consumer(
    state: BrokerState,
    consumer: ConsumerData,
    member: RegisteredMember,
    request: Request,
    *,
    keeps: bool,
) -> bool:
    """Note a consumer; return whether its group exists or could be created."""
    name, now_ms = consumer.group_name, request.now_ms
    group = state.find_group(name, now_ms, request.user)
    if group is None:
        return False
    if group.retry_queue_nums > 0:
        _ensure_retry_topic(state, consumer, group.retry_queue_nums, now_ms)
    if state.clients.register_consumer(consumer, member, keeps_subscriptions=keeps):
        state.notify_group(name)
    return True


def _ensure_retry_topic(
    state: BrokerState, consumer: ConsumerData, queues: int, now_ms: int
) -> None:
    """Create the group's retry topic if it is new; it is ordered if any subscribed topic is."""
    topics = [state.topics.get(item.topic) for item in consumer.subscription_data_set or ()]
    ensure_retry_topic(
        state,
        consumer.group_name,
        queues,
        now_ms,
        order=any(topic.order for topic in topics if topic is not None),
        sys_flag=_UNIT_SUBSCRIBES if consumer.unit_mode else 0,
    )


def unregister_client(state: BrokerState, request: Request) -> Command:
    """UNREGISTER_CLIENT."""
    header = UnregisterClientHeader.decode(request.command.ext_fields)
    connection = request.connection.id
    if header.producer_group:
        state.clients.unregister_producer(header.producer_group, connection)
    group = header.consumer_group
    if group and state.clients.unregister_consumer(group, connection):
        state.notify_group(group)
    return reply(request.command)


def check_client_config(state: BrokerState, request: Request) -> Command:
    """CHECK_CLIENT_CONFIG: whether the broker supports the filter of a client."""
    body = request.command.body
    asked = msgspec.convert(read_json(body), _ClientCheck) if body else _ClientCheck()
    if asked.subscription is not None:
        check_filter(state, asked.subscription)
    return reply(request.command)


@decodable
class _ClientCheck(msgspec.Struct):
    subscription: SubscriptionData | None = msgspec.field(name="subscriptionData", default=None)


def get_consumer_list_by_group(state: BrokerState, request: Request) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP."""
    name = request.command.ext_fields.get("consumerGroup", "")
    group = state.clients.consumer_group(name)
    if group is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return reply(request.command, body=plain_json({"consumerIdList": group.client_ids()}).encode())


def get_consumer_connection_list(state: BrokerState, request: Request) -> Command:
    """GET_CONSUMER_CONNECTION_LIST."""
    name = request.command.ext_fields.get("consumerGroup", "")
    group = state.clients.consumer_group(name) or state.guests.group(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    body = {
        "connectionSet": [
            connection_of(member)
            for member in (*group.members.values(), *state.guests.members_of(name))
        ],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": msgspec.to_builtins(group.subscriptions),
    }
    return reply(request.command, body=plain_json(body).encode())  # a group may have thousands


def update_and_create_subscription_group(state: BrokerState, request: Request) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    body = request.command.body
    if body:
        group = _wanted(state, read_json(body))
        state.pressure.check_tables()
        if not state.groups.has_room(group):
            raise table_full("groups")
        new = state.creators.refuse("group", [group.group_name], request.user, state.config)
        state.groups.set_group(group, request.now_ms)
        state.creators.note("group", new, request.user)
        state.groups_changed()
    state.reply_when_saved(request, reply(request.command))


@decodable
class _GroupList(msgspec.Struct):
    groups: list[Any] = msgspec.field(name="groupConfigList")


def update_and_create_subscription_group_list(state: BrokerState, request: Request) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all groups, or none if one is faulty."""
    listed = msgspec.convert(read_json(request.command.body), _GroupList).groups
    refuse_above(len(listed), ROWS_MAX, "groups")
    groups = [_wanted(state, each) for each in listed]
    state.pressure.check_tables()
    if not all(map(state.groups.has_room, groups)):
        raise table_full("groups")
    names = [group.group_name for group in groups]
    new = state.creators.refuse("group", names, request.user, state.config)
    for group in groups:
        state.groups.set_group(group, request.now_ms)
    state.creators.note("group", new, request.user)
    state.groups_changed()
    state.reply_when_saved(request, reply(request.command))


def _wanted(state: BrokerState, row: Any) -> GroupConfig:
    """Return the requested settings, together with the attributes that the request keeps."""
    fields = msgspec.convert(row, dict[str, Any])
    fields["attributes"] = fields.get("attributes") or {}
    group = msgspec.convert(fields, GroupConfig)
    _refuse_faulty(group)
    known = state.groups.get(group.group_name)
    current = known.attributes if known is not None else None
    group.attributes = altered(current, group.attributes)
    return group


def _refuse_faulty(group: GroupConfig) -> None:
    fault = group_fault(group.group_name)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    if group.retry_queue_nums > QUEUES_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"retryQueueNums={group.retry_queue_nums}: a topic has 0 to {QUEUES_MAX} queues",
        )


def delete_subscription_group(state: BrokerState, request: Request) -> None:
    """DELETE_SUBSCRIPTIONGROUP: delete a group's settings, and on request its offsets."""
    header = DeleteGroupHeader.decode(request.command.ext_fields)
    state.pressure.check_tables()
    if state.groups.remove(header.group_name, request.now_ms):
        state.groups_changed()
    state.creators.forget("group", header.group_name)
    state.statistics.forget_group(header.group_name)
    forget_modes(state, group=header.group_name)
    state.popped.forget(group=header.group_name)
    state.orders.forget(group=header.group_name)
    if header.clean_offset:
        state.offsets.remove_group(header.group_name)
    state.reply_when_saved(request, reply(request.command))


def get_subscription_group_config(state: BrokerState, request: Request) -> Command:
    """GET_SUBSCRIPTIONGROUP_CONFIG."""
    group = state.groups.get(request.command.ext_fields.get("group", ""))
    if group is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return reply(request.command, body=fastjson.dumps(msgspec.to_builtins(group)))
