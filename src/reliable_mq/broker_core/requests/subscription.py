"""Which messages of a topic a pull wants: what the group subscribed to, or what the pull says.

Source: Apache RocketMQ `PullMessageProcessor`, `FilterAPI`, `ExpressionType`.
"""

from reliable_mq.broker_core.clients import BROADCASTING, SubscriptionData
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.refusal import SEE_FAQ, Refused
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.java_hash import tags_code

ALL = "*"
SUBSCRIPTION_FLAG = 0x4

# `forbiddenType` of a refused pull: what forbids it
BROADCASTING_FORBIDDEN = {"forbiddenType": "4"}
SUBSCRIPTION_FORBIDDEN = {"forbiddenType": "5"}


def is_by_tags(expression_type: str | None) -> bool:
    """Whether an expression of this type names tags; no type does."""
    return expression_type in (None, "", "TAG")


def refuse_other_filters(expression_type: str | None) -> None:
    """Refuse what is not filtered by tags, as Apache does when `enablePropertyFilter` is off."""
    if not is_by_tags(expression_type):
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


def wanted_tags(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader
) -> frozenset[int] | None:
    """Return the tag hashes that a pull wants, None for all messages.

    Raises:
        Refused: when nobody subscribed, or not to this, or by an expression that does not read.
    """
    if header.sys_flag & SUBSCRIPTION_FLAG:
        return _inline_tags(header.subscription or "", header.expression_type)
    subscription = _registered(state, group, header)
    refuse_other_filters(subscription.expression_type)
    return None if subscription.sub_string == ALL else frozenset(subscription.code_set)


def _inline_tags(expression: str, expression_type: str | None) -> frozenset[int] | None:
    if expression_type not in (None, "TAG"):
        if not expression:
            raise _unreadable()
        refuse_other_filters(expression_type)
    if expression in ("", ALL):
        return None
    if not expression.replace("||", ""):
        raise _unreadable()
    tags = (tag.strip() for tag in expression.split("||"))
    return frozenset(tags_code(tag) for tag in tags if tag)


def _unreadable() -> Refused:
    return Refused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
    )


def _registered(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader
) -> SubscriptionData:
    """Return what the group's members said in their heartbeats that they want of the topic."""
    members = state.clients.consumer_group(header.consumer_group)
    if members is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}"
        )
    if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            BROADCASTING_FORBIDDEN,
        )
    if state.groups.is_read_forbidden(group.group_name, header.topic):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            SUBSCRIPTION_FORBIDDEN,
        )
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE_FAQ}"
        )
    if subscription.sub_version < header.sub_version:
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    return subscription
