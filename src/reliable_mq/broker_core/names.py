"""Topic and group names: legal names, system names, derived names.

Source: Apache RocketMQ `TopicValidator`, `MixAll`.
"""

import re

from reliable_mq.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.wire.java_int import I32_MAX
from reliable_mq.wire.pop_handle import RETRY, RETRY_V2, stored_topic

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"  # the template for topics that a first send creates
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # half messages
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which half messages are settled
SETTLED_TAG = "d"  # of each record there; its body is offsets of half messages
OFFSET_SEPARATOR = ","
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that reached the check limit
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
TIMER_TOPIC = "rmq_sys_wheel_timer"
EVENT_TOPIC = "OFFSET_MOVED_EVENT"  # events of queues, written by brokers
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # trace records of messages, written by clients
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"  # checkpoints and acknowledgements of popped messages
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

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
        TIMER_TOPIC,  # Apache accepts sends to it, and trusts the place that the message names
        "SELF_TEST_TOPIC",
        EVENT_TOPIC,
    }
)


def retry_topic(group: str) -> str:
    """Return the retry topic of a group: failed messages wait there for the next attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the dead-letter topic of a group."""
    return DEAD_LETTER_PREFIX + group


def revive_topic(cluster: str) -> str:
    """Return the topic in which the cluster's brokers note what was popped and acknowledged."""
    return REVIVE_PREFIX + cluster


def is_revive_topic(topic: str) -> bool:
    """Whether brokers note in this topic what was popped. (Apache lets clients forge the notes.)"""
    return topic.startswith(REVIVE_PREFIX)


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Return where a group finds popped messages of a topic again that it did not acknowledge."""
    return stored_topic(topic, group, RETRY_V2 if is_v2 else RETRY)


def reply_topic(cluster: str) -> str:
    """Return the topic for replies to requests of the cluster's clients."""
    return f"{cluster}_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    """Whether the topic is a group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Whether this is a topic of every broker. Clients may not create or delete such topics."""
    return topic in _SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def system_topics() -> frozenset[str]:
    """Return the topics that every broker has for itself."""
    return _SYSTEM_TOPICS


def is_send_forbidden(topic: str) -> bool:
    """Whether clients may not send to this system topic."""
    return topic in _NO_SEND_TOPICS or is_revive_topic(topic)


def can_wait(topic: str, queue_id: int) -> bool:
    """Whether a delayed message may name this topic and queue as its real place.

    The broker itself stores the message there later. So the topic must be one that a client may
    send to, and its name must be legal as the name of a folder.
    """
    return 0 <= queue_id <= I32_MAX and not is_send_forbidden(topic) and not topic_fault(topic)


def is_system_group(group: str) -> bool:
    """Whether this is a broker's own group, which is created at first use."""
    return group.startswith("CID_RMQ_SYS_")


def topic_fault(topic: str) -> str:
    """Return the fault of a topic name, in Apache's words; empty when the name is legal."""
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
    """Return the fault of a group name, in Apache's words; empty when the name is legal."""
    if not group.strip():
        return "The specified group is blank."
    if not _LEGAL.fullmatch(group):
        return f"The specified group: {group}, {_ILLEGAL}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return ""
