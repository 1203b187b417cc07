"""What the requests that consume by the message have in common: who may, which queue, which group.

Source: Apache RocketMQ `PopMessageProcessor`, `AckMessageProcessor`, `NotificationProcessor`.
"""

from reliable_mq.broker_core.names import is_send_forbidden
from reliable_mq.broker_core.requests.refusal import SEE_FAQ, RequestRefused, no_such_topic
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.topics import READ, TopicConfig
from reliable_mq.wire.codes import ResponseCode

_ATTEMPT_ID_MAX = 255  # a UUID has 36


def readable_topic(state: BrokerState, name: str, queue_id: int, peer: str) -> TopicConfig:
    """Return a topic whose queue may be read; -1 stands for all queues.

    Raises:
        RequestRefused: when it does not exist, or may not be read, or has no such queue.
    """
    topic = state.topics.by_name.get(name)
    if topic is None:
        raise no_such_topic(name, after=" ")
    if not topic.perm & READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden"
        )
    if queue_id >= topic.read_queue_nums:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, _no_queue(topic, queue_id, peer))
    return topic


def known_queue(state: BrokerState, name: str, queue_id: int, peer: str) -> TopicConfig:
    """Return the topic of a message that was popped from this queue.

    Raises:
        RequestRefused: when there is no such topic or queue.
    """
    topic = state.topics.by_name.get(name)
    if topic is None:
        raise no_such_topic(name, after=" ")
    if not 0 <= queue_id < topic.read_queue_nums:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, _no_queue(topic, queue_id, peer))
    return topic


def refuse_hiding(state: BrokerState, topic: TopicConfig, group: str) -> None:
    """Refuse another time for a message that the group cannot have popped.

    The message comes back in a topic that the group may read. So the group must be able to read it
    here, too.

    Raises:
        RequestRefused: the topic may not be read or is a broker's own, or there is no such group.
    """
    if not topic.perm & READ or is_send_forbidden(topic.topic_name):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{topic.topic_name}] peeking message is forbidden",
        )
    if group not in state.groups.by_name:
        raise _no_group(group)


def _no_group(name: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{name}] does not exist, {SEE_FAQ}",
    )


def _no_queue(topic: TopicConfig, queue_id: int, peer: str) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer}]"
    )


def refuse_too_long(state: BrokerState, invisible_ms: int) -> None:
    """Refuse an invisible time for which a checkpoint cannot wait.

    Raises:
        RequestRefused: it is above `timerMaxDelaySec`.
    """
    most = state.config.timer_seconds_max * 1_000
    if invisible_ms > most:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime {invisible_ms} is above {most} (timerMaxDelaySec): ask for less",
        )


def refuse_long_attempt(attempt_id: str | None) -> None:
    """Refuse an attempt id that is too long: the broker keeps it for each queue.

    Raises:
        RequestRefused: it is.
    """
    if attempt_id is not None and len(attempt_id) > _ATTEMPT_ID_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(attempt_id)} characters: use at most {_ATTEMPT_ID_MAX}",
        )


def refuse_group(state: BrokerState, name: str, request: Request) -> None:
    """Refuse a request of a group that does not exist, or may not consume.

    Raises:
        RequestRefused: it is one of these.
    """
    group = state.groups.by_name.get(name) or state.find_group(name, request.now_ms, request.user)
    if group is None:
        raise _no_group(name)
    if not group.consume_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
        )
