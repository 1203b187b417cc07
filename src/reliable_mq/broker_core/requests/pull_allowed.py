"""Who may pull from a queue, and which messages the pull accepts.

A pull accepts messages by its group's subscription, or by its own expression.
Source: Apache RocketMQ `PullMessageProcessor`, `FilterAPI`.
"""

from typing import Any

from reliable_mq.access.users import AccessRefused
from reliable_mq.broker_core.clients import BROADCASTING, SubscriptionData
from reliable_mq.broker_core.delivery.long_poll import Wanted
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.refusal import (
    SEE_FAQ,
    RequestRefused,
    no_such_topic,
    refuse_above,
)
from reliable_mq.broker_core.requests.subscription import compiled, is_by_tags, refuse_when_off
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.topics import READ, TopicConfig
from reliable_mq.limits import FILTER_LENGTH_MAX, TAGS_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.java_hash import tags_code

_SUBSCRIPTION_FLAG = 0x4
_GROUP_FORBIDDEN = {"forbiddenType": "2"}
_TOPIC_FORBIDDEN = {"forbiddenType": "3"}
_BROADCASTING_FORBIDDEN = {"forbiddenType": "4"}
_SUBSCRIPTION_FORBIDDEN = {"forbiddenType": "5"}
_ALL, _TAG = "*", "TAG"


def allowed(
    state: BrokerState,
    group: GroupConfig | None,
    header: PullMessageHeader,
    peer: str,
    known: Wanted = None,
) -> tuple[TopicConfig, Wanted]:
    """Return the topic of an allowed pull, and the messages that the pull accepts.

    `known` is the former result for a waiting pull.

    Raises:
        RequestRefused: when the pull is not allowed.
    """
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist, {SEE_FAQ}",
        )
    if not group.consume_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {header.consumer_group}",
            _GROUP_FORBIDDEN,
        )
    topic = state.topics.by_name.get(header.topic)
    if topic is None:
        raise no_such_topic(header.topic, after=" ")
    if not topic.perm & READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{header.topic}] pulling message is forbidden",
            _TOPIC_FORBIDDEN,
        )
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer}]",
        )
    return topic, _wanted_by(state, group, header, known)


def _wanted_by(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader, known: Wanted = None
) -> Wanted:
    """Return the messages that a pull accepts.

    `known` is the former result for a waiting pull. The expression of the pull is the same then,
    and the subscription usually is, so that it need not be parsed again.

    Raises:
        RequestRefused: when the group has no such subscription, or its expression does not parse.
    """
    if header.sys_flag & _SUBSCRIPTION_FLAG:
        return inline_wanted(state, header.subscription or "", header.expression_type, known)
    subscription = _registered(state, group, header)
    if subscription.expression_type == _TAG or is_by_tags(subscription.expression_type):
        return None if subscription.sub_string == _ALL else frozenset(subscription.code_set)
    refuse_when_off(state, subscription.expression_type)
    try:
        return compiled(subscription.sub_string, subscription.expression_type, known)
    except FilterRefused as refused:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        ) from refused


def inline_wanted(
    state: BrokerState, expression: str, expression_type: str | None, known: Wanted = None
) -> Wanted:
    """Return the messages that the expression of a request itself accepts; `known` as above.

    Raises:
        RequestRefused: when the expression does not parse, or is too large.
    """
    if expression_type not in (None, "TAG"):
        if not expression:
            raise _unreadable()
        if not is_by_tags(expression_type):
            refuse_when_off(state, expression_type)
            try:
                return compiled(expression, expression_type, known)
            except FilterRefused as refused:
                # Apache does not refuse here, and lets all messages through.
                raise _unreadable() from refused
    if expression in ("", _ALL):
        return None
    if known is not None:
        return known
    if not expression.replace("||", ""):
        raise _unreadable()
    refuse_above(len(expression), FILTER_LENGTH_MAX, "characters of a subscription")
    refuse_above(expression.count("||") + 1, TAGS_MAX, "tags")
    tags = (tag.strip() for tag in expression.split("||"))
    return frozenset(tags_code(tag) for tag in tags if tag)


def _unreadable() -> RequestRefused:
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
    )


def _registered(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader
) -> SubscriptionData:
    """Return the group's subscription to the topic, as its members sent it in heartbeats."""
    members = state.clients.consumers.get(header.consumer_group)
    if members is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}"
        )
    if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            _BROADCASTING_FORBIDDEN,
        )
    groups = state.groups
    if groups.forbidden and groups.is_read_forbidden(group.group_name, header.topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            _SUBSCRIPTION_FORBIDDEN,
        )
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE_FAQ}"
        )
    if subscription.sub_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    return subscription


def refuse_revoked(state: BrokerState, code: int, user: str, address: str, header: Any) -> None:
    """Refuse a request that waited, if its user may not do it any more.

    Args:
        state: the broker's state.
        code: of the request.
        user: who signed it; "": nobody.
        address: of the peer.
        header: of the request; it has a topic and a group.

    Raises:
        RequestRefused: the user or a policy was changed while the request waited.
    """
    if state.guard is None:
        return
    names = {"topic": header.topic, "consumerGroup": header.consumer_group}
    try:
        state.guard.check_again(user, Command(code, ext_fields=names), address)
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from None
