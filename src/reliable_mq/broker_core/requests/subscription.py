"""Subscriptions: which ones are refused, and the filters of their expressions.

Source: Apache RocketMQ `FilterAPI`, `ExpressionType`.
"""

from reliable_mq.broker_core.clients import SubscriptionData
from reliable_mq.broker_core.delivery.long_poll import Wanted
from reliable_mq.broker_core.filter.sql92 import SQL92, Filter, compile_filter
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.requests.refusal import RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.limits import FILTER_LENGTH_MAX, TAGS_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import ResponseCode

log = limited_log(__name__)


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
    refuse_when_off(state, subscription.expression_type)
    try:
        compiled(subscription.sub_string, subscription.expression_type)
    except FilterRefused as refused:
        broker_events.FILTER_UNREADABLE.log(log, filter=subscription.sub_string, error=refused)
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(refused)) from refused


def compiled(expression: str, expression_type: str | None, known: Wanted = None) -> Filter:
    """Return the filter of an expression; `known` if it is that of the same expression.

    Raises:
        FilterRefused: when the type is unknown, or the expression is too large or does not parse.
    """
    if expression_type != SQL92:
        raise FilterRefused(f"filter type {expression_type} is not supported")
    if isinstance(known, Filter) and known.text == expression:
        return known
    return compile_filter(expression)


def refuse_when_off(state: BrokerState, expression_type: str | None) -> None:
    """Refuse an expression that is not of tags.

    Raises:
        RequestRefused: when `enablePropertyFilter` is off.
    """
    if not state.config.property_filter:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )
