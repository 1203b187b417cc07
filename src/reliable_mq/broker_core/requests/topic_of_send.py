"""The topic of a send: an existing one, a new one, or the dead letters of a group.

Source: Apache RocketMQ `AbstractSendMessageProcessor`, `TopicConfigManager`.
"""

from reliable_mq.broker_core.names import (
    RETRY_PREFIX,
    is_retry_topic,
    is_send_forbidden,
    topic_fault,
)
from reliable_mq.broker_core.needed_topics import ensure_dead_letter_topic, ensure_retry_topic
from reliable_mq.broker_core.requests.refusal import (
    RequestRefused,
    no_such_group,
    no_such_topic,
    table_full,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.headers import SendMessageHeader


def topic_for(state: BrokerState, header: SendMessageHeader, request: Request) -> TopicConfig:
    """Return the topic to store in: an existing one, a new one, or the group's dead letters.

    Raises:
        RequestRefused: when clients may not send there, or the topic does not exist.
    """
    name = header.topic
    topic = state.topics.get(name)
    if topic is not None and name[0] != "%" and not is_send_forbidden(name):
        return topic
    fault = topic_fault(name)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    if is_send_forbidden(name):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
        )
    if is_retry_topic(name):
        return _retry_topic(state, header, request)
    topic = _made(state, header, request)
    if topic is None:
        raise no_such_topic(name)
    return topic


def _retry_topic(state: BrokerState, header: SendMessageHeader, request: Request) -> TopicConfig:
    """Return the topic for a retry that a consumer sends itself.

    A group that holds queue locks consumes in order. Its clients count attempts themselves, and
    send a message only when they give it up.
    """
    group_name, now_ms = header.topic.removeprefix(RETRY_PREFIX), request.now_ms
    group = state.find_group(group_name, now_ms, request.user)
    if group is None:
        raise no_such_group(group_name)
    attempts_max = header.max_reconsume_times
    if attempts_max is None:
        attempts_max = group.retry_max_times
    is_dead = (header.reconsume_times or 0) > attempts_max
    if is_dead or state.locks.is_any_live(group_name, now_ms):
        return ensure_dead_letter_topic(state, group_name, now_ms)
    return _made(state, header, request) or ensure_retry_topic(state, group_name, 1, now_ms)


def _made(state: BrokerState, header: SendMessageHeader, request: Request) -> TopicConfig | None:
    """Return the topic of a send; create it from the template in the header if it is missing.

    Raises:
        RequestRefused: when there is no room for one more. A retry topic needs room in the table
            only: groups have a limit of their own.
    """
    name = header.topic
    topic = state.topics.get(name)
    if topic is not None:
        return topic
    topic = state.topics.from_default(name, header.default_topic, header.default_topic_queue_nums)
    if topic is None:
        return None
    if not state.topics.has_room(topic):
        raise table_full("topics")
    if not is_retry_topic(name):
        state.creators.refuse("topic", (name,), request.user, state.config)
        state.creators.note("topic", (name,), request.user)
    state.put_topic(topic, request.now_ms)
    return topic
