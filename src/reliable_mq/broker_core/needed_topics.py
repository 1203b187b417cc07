"""Topics that the broker makes when it needs them: for retries, dead letters and lost halves.

Receives names of groups. Returns topics, which are saved and registered like those of clients.
"""

from reliable_mq.broker_core.names import GIVEN_UP_TOPIC, dead_letter_topic, retry_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.topics import READ, WRITE, TopicConfig


def ensure_retry_topic(
    state: BrokerState,
    group: str,
    queues: int,
    now_ms: int,
    *,
    order: bool = False,
    sys_flag: int = 0,
) -> TopicConfig:
    """Return the group's retry topic; create it if it does not exist."""
    return _ensure(state, retry_topic(group), queues, now_ms, order=order, sys_flag=sys_flag)


def ensure_dead_letter_topic(state: BrokerState, group: str, now_ms: int) -> TopicConfig:
    """Return the group's dead-letter topic; create it if it does not exist."""
    return _ensure(state, dead_letter_topic(group), 1, now_ms)


def ensure_given_up_topic(state: BrokerState, now_ms: int) -> TopicConfig:
    """Return the topic of half messages that were given up; create it if necessary."""
    return _ensure(state, GIVEN_UP_TOPIC, 1, now_ms)


def ensure_pop_retry_topic(state: BrokerState, name: str, now_ms: int) -> TopicConfig:
    """Return the topic for popped messages that come back; create it if necessary."""
    return _ensure(state, name, 1, now_ms)


def _ensure(
    state: BrokerState,
    name: str,
    queues: int,
    now_ms: int,
    *,
    order: bool = False,
    sys_flag: int = 0,
) -> TopicConfig:
    topic = state.topics.get(name)
    if topic is None:
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READ | WRITE,
            order=order,
            topic_sys_flag=sys_flag,
        )
        state.put_topic(topic, now_ms)
    return topic
