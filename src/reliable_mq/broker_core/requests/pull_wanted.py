"""Pulls and pops that name what they want themselves.

Source: Apache RocketMQ `FilterAPI`.
"""

from reliable_mq.broker_core.delivery.long_poll import Wanted
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.requests.refusal import RequestRefused, refuse_above
from reliable_mq.broker_core.requests.subscription import compiled, is_by_tags, refuse_when_off
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.limits import FILTER_LENGTH_MAX, TAGS_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.java_hash import tags_code

_ALL = "*"


def inline_wanted(
    state: BrokerState, expression: str, expression_type: str | None, known: Wanted = None
) -> Wanted:
    """Return the messages that the expression of a request itself accepts.

    `known` is the former result for a request that waits: its expression need not be parsed again.

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
