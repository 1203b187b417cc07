"""Topic and group names: what is legal, what is the system's own, what is derived.

Source: Apache RocketMQ `TopicValidator`, `MixAll`.
"""

import re

from reliable_mq.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.wire.java_int import I32_MAX

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"  # the template of topics that are created when first sent to
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # messages whose transaction is not settled
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which of them are settled
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # those that nobody settled
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
TIMER_TOPIC = "rmq_sys_wheel_timer"
EVENT_TOPIC = "OFFSET_MOVED_EVENT"  # what brokers write of what happened to queues
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # what clients write of what happened to messages

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_ILLEGAL = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
_SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_TOPIC,
        GIVEN_UP_TOPIC,
        "SELF_TEST_TOPIC",
        EVENT_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)
_NO_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        GIVEN_UP_TOPIC,
        TIMER_TOPIC,  # Apache takes what is sent there, and believes where it says it goes
        "SELF_TEST_TOPIC",
        EVENT_TOPIC,
    }
)


def retry_topic(group: str) -> str:
    """Return the topic in which a group's failed messages wait for their next attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group gave up."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic to which the cluster's clients send their answers to requests."""
    return f"{cluster}_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    """Whether the topic is a group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Whether every broker has this topic for itself, so that nobody may create or delete it."""
    return topic in _SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def system_topics() -> frozenset[str]:
    """Return the topics that every broker counts as its own."""
    return _SYSTEM_TOPICS


def is_send_forbidden(topic: str) -> bool:
    """Whether clients may not send to this system topic."""
    return topic in _NO_SEND_TOPICS


def can_wait(topic: str, queue_id: int) -> bool:
    """Whether a message that waits for its time may name this place as its own.

    The broker stores it there by itself later: what no client could have sent to directly, or what
    is no name of a folder, must not be reached on that way.
    """
    return 0 <= queue_id <= I32_MAX and not is_send_forbidden(topic) and not topic_fault(topic)


def is_system_group(group: str) -> bool:
    """Whether the group is a broker's own, so that it is created when it is first used."""
    return group.startswith("CID_RMQ_SYS_")


def topic_fault(topic: str) -> str:
    """Return what is wrong with a topic's name in Apache's words; empty when it is legal."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _LEGAL.fullmatch(topic):
        return f"The specified topic: {topic}, {_ILLEGAL}"
    if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        if len(topic) > RETRY_TOPIC_LENGTH_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than "
                f"topic max length: {RETRY_TOPIC_LENGTH_MAX}"
            )
    elif len(topic) > TOPIC_LENGTH_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {TOPIC_LENGTH_MAX}"
    return ""


def group_fault(group: str) -> str:
    """Return what is wrong with a group's name in Apache's words; empty when it is legal."""
    if not group.strip():
        return "The specified group is blank."
    if not _LEGAL.fullmatch(group):
        return f"The specified group: {group}, {_ILLEGAL}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return ""
