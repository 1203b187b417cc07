"""The messages that a pull accepts: by its group's subscription, or by its own expression.

Source: Apache RocketMQ `PullMessageProcessor`, `FilterAPI`, `ExpressionType`.
"""

from reliable_mq.broker_core.clients import BROADCASTING, SubscriptionData
from reliable_mq.broker_core.delivery.long_poll import Wanted
from reliable_mq.broker_core.filter.sql92 import SQL92, Filter, compile_filter
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.refusal import SEE_FAQ, RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.limits import FILTER_LENGTH_MAX, TAGS_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.java_hash import tags_code

log = limited_log(__name__)

ALL = "*"
SUBSCRIPTION_FLAG = 0x4

# `forbiddenType` of a refused pull: the reason
BROADCASTING_FORBIDDEN = {"forbiddenType": "4"}
SUBSCRIPTION_FORBIDDEN = {"forbiddenType": "5"}


def is_by_tags(expression_type: str | None) -> bool:
    """Whether an expression of this type lists tags; a missing type counts as TAG."""
    return expression_type in (None, "", "TAG")


def refuse_too_large(subscription: SubscriptionData) -> None:
    """Refuse a subscription that is too expensive to keep, and to apply with each pull.

    Raises:
        RequestRefused: when it has more tags or a longer text than `limits` allows.
    """
    refuse_above(max(len(subscription.code_set), len(subscription.tags_set)), TAGS_MAX, "tags")
    refuse_above(len(subscription.sub_string), FILTER_LENGTH_MAX, "characters of a subscription")


def check_filter(state: BrokerState, subscription: SubscriptionData) -> None:
    """Refuse a subscription whose filter the broker does not support.

    Raises:
        RequestRefused: when `enablePropertyFilter` is off, or the expression is too large or does
            not parse.
    """
    refuse_too_large(subscription)
    if is_by_tags(subscription.expression_type):
        return
    _refuse_when_off(state, subscription.expression_type)
    try:
        _compiled(subscription.sub_string, subscription.expression_type)
    except FilterRefused as refused:
        log.warning("cannot parse the filter %.200s: %s", subscription.sub_string, refused)
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(refused)) from refused


def _compiled(expression: str, expression_type: str | None, known: Wanted = None) -> Filter:
    if expression_type != SQL92:
        raise FilterRefused(f"filter type {expression_type} is not supported")
    if isinstance(known, Filter) and known.text == expression:
        return known
    return compile_filter(expression)


def _refuse_when_off(state: BrokerState, expression_type: str | None) -> None:
    if not state.config.property_filter:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


def wanted_by(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader, known: Wanted = None
) -> Wanted:
    """Return the messages that a pull accepts.

    `known` is the former result for a waiting pull. The expression of the pull is the same then,
    and the subscription usually is, so that it need not be parsed again.

    Raises:
        RequestRefused: when the group has no such subscription, or its expression does not parse.
    """
    if header.sys_flag & SUBSCRIPTION_FLAG:
        return _inline(state, header.subscription or "", header.expression_type, known)
    subscription = _registered(state, group, header)
    if is_by_tags(subscription.expression_type):
        return None if subscription.sub_string == ALL else frozenset(subscription.code_set)
    _refuse_when_off(state, subscription.expression_type)
    try:
        return _compiled(subscription.sub_string, subscription.expression_type, known)
    except FilterRefused as refused:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        ) from refused


def _inline(
    state: BrokerState, expression: str, expression_type: str | None, known: Wanted
) -> Wanted:
    if expression_type not in (None, "TAG"):
        if not expression:
            raise _unreadable()
        if not is_by_tags(expression_type):
            _refuse_when_off(state, expression_type)
            try:
                return _compiled(expression, expression_type, known)
            except FilterRefused as refused:
                # Apache does not refuse here, and lets all messages through.
                raise _unreadable() from refused
    if expression in ("", ALL):
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
    members = state.clients.consumer_group(header.consumer_group)
    if members is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}"
        )
    if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            BROADCASTING_FORBIDDEN,
        )
    if state.groups.is_read_forbidden(group.group_name, header.topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            SUBSCRIPTION_FORBIDDEN,
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
