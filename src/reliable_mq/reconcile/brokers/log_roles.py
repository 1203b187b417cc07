"""The roles of records: the queue of a record says if it is a first delivery or a broker's copy.

Pure. A record in an ordinary topic is a first delivery (`first`). It is `stranded` if no queue
lists it any more, because its topic was deleted. System topics have copies: `delayed` (still in a
delay queue), `retry` and `retry delayed` (to be delivered again after a failed attempt), and `dead`
(a dead letter). Any other record there is `system`. `damaged` is a part of a log that is no record.

Source: Apache RocketMQ `MixAll`, `TopicValidator`, `KeyBuilder`, `ScheduleMessageService`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import DELAY_LEVELS_TEXT
from reliable_mq.wire.properties import (
    DELAY,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELETED_KEY,
    TIMER_OUT_MS,
)

RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DLQ%"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
DELAY_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
        "DefaultHeartBeatSyncerTopic",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "%LMQ%")

FIRST, DELAYED, RETRY, RETRY_DELAYED = "first", "delayed", "retry", "retry delayed"
DEAD, SYSTEM, DAMAGED = "dead", "system", "damaged"
STRANDED = "stranded"

_POP_SEPARATOR = "+"  # not allowed in topics and groups, so these names are unambiguous
_OLD_POP_SEPARATOR = "_"
_MS_OF_UNIT = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIMER_SLOT_MS = 1_000
_LONG_MAX = 2**63 - 1


def delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of each delay level, from a broker's `messageDelayLevel`.

    Raises:
        ConfigurationError: when the text is no list such as "1s 5s 2h".
    """
    try:
        return tuple(int(word[:-1]) * _MS_OF_UNIT[word[-1]] for word in text.split())
    except (ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{text!r} is not a list of delay levels; write it like 1s 5s 10s"
        ) from error


@dataclass(frozen=True)
class RecordContext:
    """The settings and names of a broker that the meaning of its records depends on.

    Attributes:
        delay_ms: the wait of each delay level, level 1 first.
        pop_retries: the retry topics of groups that pop, each for one topic: name ->
            (group, topic).
        delivery_ms: (queue id, queue offset, log offset) -> when a message of the delay queues is
            due, in milliseconds since the epoch. If it is not None, delay levels do not count.
        listed_from: (topic, queue id) -> the log offset from which the queue lists its records.
            None: every queue lists all its records.
    """

    delay_ms: tuple[int, ...] = delay_levels(DELAY_LEVELS_TEXT)
    pop_retries: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    delivery_ms: Callable[[int, int, int], int | None] = lambda *_: None
    listed_from: Callable[[str, int], int] | None = None


USUAL = RecordContext()


class RecordRole(NamedTuple):
    """The role of a record. `topic` is the topic that the message was sent to, if it is known.

    `due_ms`: the latest time at which the broker delivers a delayed copy, in milliseconds since the
    epoch.
    """

    role: str
    topic: str
    consumer_group: str | None = None
    delay_level: int | None = None
    due_ms: int | None = None


def is_special(topic: str) -> bool:
    """Return whether a topic is a system topic, in which brokers store copies and notes."""
    return (
        topic.startswith("%")
        or topic in DELAY_TOPICS
        or topic in SYSTEM_TOPICS
        or topic.startswith(SYSTEM_PREFIXES)
    )


def role_of_first(topic: str, queue_id: int, log_offset: int, context: RecordContext) -> str:
    """Return the role of a record in an ordinary topic: a first delivery, or stranded."""
    listed_from = context.listed_from
    is_listed = listed_from is None or log_offset >= listed_from(topic, queue_id)
    return FIRST if is_listed else STRANDED


class RecordPlace(NamedTuple):
    """The position of a record, and its store time in milliseconds since the epoch."""

    queue_topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    store_time_ms: int


def role_of(
    place: RecordPlace, properties: Mapping[str, str], context: RecordContext
) -> RecordRole:
    """Return the role of a record in a system topic."""
    queue_topic, origin = place.queue_topic, properties.get(RETRY_TOPIC)
    level = _level(properties)
    if queue_topic.startswith(RETRY_PREFIX):
        group, topic = retry_names(queue_topic, context)
        return RecordRole(RETRY, origin or topic or queue_topic, group, level)
    if queue_topic.startswith(DEAD_PREFIX):
        group = queue_topic.removeprefix(DEAD_PREFIX)
        return RecordRole(DEAD, origin or queue_topic, group, level)
    if queue_topic not in DELAY_TOPICS or TIMER_DELETED_KEY in properties:  # the key: a recall
        return RecordRole(SYSTEM, queue_topic, None, level)
    due = (_timer_due if queue_topic == TIMER_TOPIC else _level_due)(place, properties, context)
    real = properties.get(REAL_TOPIC, queue_topic)
    if real.startswith(RETRY_PREFIX):
        group, topic = retry_names(real, context)
        return RecordRole(RETRY_DELAYED, origin or topic or queue_topic, group, level, due)
    return RecordRole(DELAYED, real, None, level, due)


def retry_names(queue_topic: str, context: RecordContext) -> tuple[str, str | None]:
    """Return (consumer group, topic or None) of a retry topic, from its name.

    A group that pops has one retry topic for each of its topics: `%RETRY%group+topic`. Older
    brokers, and Apache's default settings, use `%RETRY%group_topic`. This form is ambiguous, so it
    is found in `customs.pop_retries`.
    """
    known = context.pop_retries.get(queue_topic)
    if known is not None:
        return known
    group, separator, topic = queue_topic.removeprefix(RETRY_PREFIX).partition(_POP_SEPARATOR)
    return (group, topic) if separator else (group, None)


def pop_retries(topics: Iterable[str], groups: Collection[str]) -> dict[str, tuple[str, str]]:
    """Find the names of the form `%RETRY%group_topic` among the topics of a broker.

    Args:
        topics: all topics of the broker, including retry topics.
        groups: its consumer groups. The retry topic of a whole group name is not of this form.
    """
    names = set(topics)
    found: dict[str, tuple[str, str]] = {}
    for name in sorted(names):
        rest = name.removeprefix(RETRY_PREFIX)
        if rest == name or rest in groups or _POP_SEPARATOR in rest:
            continue
        at = rest.rfind(_OLD_POP_SEPARATOR)
        while at > 0:  # try the longest group name first
            group, topic = rest[:at], rest[at + 1 :]
            if group in groups and topic in names:
                found[name] = (group, topic)
                break
            at = rest.rfind(_OLD_POP_SEPARATOR, 0, at)
    return found


def _level(properties: Mapping[str, str]) -> int | None:
    text = properties.get(DELAY, "")
    return min(int(text), 2**31 - 1) if text.isdecimal() and text.isascii() else None


def _level_due(place: RecordPlace, properties: Mapping[str, str], context: RecordContext) -> int:
    known = context.delivery_ms(place.queue_id, place.queue_offset, place.log_offset)
    if known is not None and known >= place.store_time_ms:  # otherwise it is the hash of a tag
        return known
    level, steps = _level(properties), context.delay_ms
    level = place.queue_id + 1 if level is None else level
    return place.store_time_ms + (steps[max(1, min(level, len(steps))) - 1] if steps else 0)


def _timer_due(place: RecordPlace, properties: Mapping[str, str], _context: RecordContext) -> int:
    """Return the end of the timer wheel's slot. Our broker delivers in it, Apache's after it."""
    text = properties.get(TIMER_OUT_MS, "")
    is_number = text.isdecimal() and text.isascii() and len(text) < len(str(_LONG_MAX))
    return int(text) + _TIMER_SLOT_MS if is_number else place.store_time_ms
