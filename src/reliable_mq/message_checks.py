"""Checks of a message for rules of brokers and other clients, and the properties to store with it.

Receives messages. Returns their stored properties, or raises before anything is promised.
Source of limits and property names: Apache RocketMQ `Validators`, `MessageConst`,
`DefaultMQProducerImpl`, `HookUtils`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import (
    DELAY_LEVEL_SECONDS,
    MESSAGE_BODY_SIZE_MAX,
    PROPERTIES_SIZE_MAX,
    RETRY_TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
)
from reliable_mq.message import TEXT_FIELDS, Message
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_legal_name
from reliable_mq.wire.properties import (
    DELAY,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)

DELAY_LEVEL_MAX = len(DELAY_LEVEL_SECONDS)
_FLAG_LIMIT = 2**31
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OF_TIMERS = frozenset({TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_OUT_MS})
OWN_FIELDS = frozenset({KEYS, TAGS, WAIT, DELAY, UNIQ_KEY, SHARDING_KEY})
#: source: Apache RocketMQ `TopicValidator.isNotAllowedSendTopic`, and our broker's timer topic
_NOT_TO_SEND_TO = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer"}
    | {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
)


def check_topic(topic: str) -> None:
    """Check that brokers accept messages of a topic.

    Raises:
        MessageRefused: its name is not legal, or it is a system topic of the brokers.
    """
    if not isinstance(topic, str):
        raise MessageRefused(
            f'topic {topic!r:.100} is not a text: the topic comes first, send("orders", {{…}})'
        )
    _check_name(topic)


@lru_cache(maxsize=1024)  # a client sends to few topics, and to each very often
def _check_name(topic: str) -> None:
    if topic in _NOT_TO_SEND_TO:
        raise MessageRefused(f"topic {topic} is a system topic: nobody may send to it")
    prefixed = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    length_max = RETRY_TOPIC_LENGTH_MAX if prefixed else TOPIC_LENGTH_MAX
    if not is_legal_name(topic, length_max):
        raise MessageRefused(
            f"topic {topic!r} is not a legal name: use 1..{length_max} of a-z A-Z 0-9 _ - % |"
        )


def check_message(message: Message, body_size_max: int = MESSAGE_BODY_SIZE_MAX) -> None:
    """Check the rules of brokers and other clients, before anything is promised.

    Raises:
        MessageRefused: a limit or a naming rule is broken; the text says which.
    """
    topic = message.topic
    if not isinstance(topic, str):
        check_topic(topic)
    _check_name(topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise MessageRefused(f"the body is of type {type(message.body).__name__}, it must be bytes")
    if not message.body:
        raise MessageRefused("the body is empty: Apache's clients cannot send or read that")
    if len(message.body) > body_size_max:
        raise MessageRefused(f"the body has {len(message.body)} bytes, {body_size_max} are allowed")
    if message.delay_level and not _is_within(message.delay_level, 1, DELAY_LEVEL_MAX):
        raise MessageRefused(f"delay level {message.delay_level} is not in 0..{DELAY_LEVEL_MAX}")
    if message.delay is not None or message.deliver_at is not None:
        check_times(message)
    if message.flag and not _is_within(message.flag, -_FLAG_LIMIT, _FLAG_LIMIT - 1):
        raise MessageRefused(f"flag {message.flag} is not a 32-bit number")
    if message.keys:
        _check_keys(message.keys)
    if message.properties:
        _check_properties(message.properties)


def _check_properties(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(f"property {name!r}={value!r}: both must be str")
        if not name:
            raise MessageRefused(f"property ''={value!r}: give the property a name")
    taken = OWN_FIELDS.intersection(given)
    if taken:
        raise MessageRefused(f"property {min(taken)} is set by a field of the message")


def check_times(message: Message) -> None:
    """Check the fields for the time at which a message becomes visible.

    Raises:
        MessageRefused: more than one field is set, or one has an impossible value.
    """
    is_timed = message.delay is not None or message.deliver_at is not None
    if not is_timed:
        return
    said = bool(message.delay_level) + (message.delay is not None)
    if said + (message.deliver_at is not None) > 1:
        raise MessageRefused("a message has at most one of delay_level, delay and deliver_at")
    if message.delay is not None and message.delay < timedelta():
        raise MessageRefused(f"a delay of {message.delay} is negative")
    if message.deliver_at is not None and message.deliver_at.utcoffset() is None:
        raise MessageRefused(
            f"deliver_at {message.deliver_at} has no time zone: add one, such as datetime.now(UTC)"
        )
    taken = _OF_TIMERS.intersection(message.properties)
    if taken:
        raise MessageRefused(
            f"property {min(taken)} sets another time than the field of the message: leave it out"
        )


def timer_properties(message: Message) -> dict[str, str]:
    """Return the properties that ask for the time of a timed message.

    The broker's clock counts a delay, from the arrival of the message on.
    """
    if message.delay is not None:
        return {TIMER_DELAY_MS: str(-(-message.delay // _MILLISECOND))}
    if message.deliver_at is not None:
        return {TIMER_DELIVER_MS: str((message.deliver_at - _EPOCH) // _MILLISECOND)}
    return {}


def _is_within(value: int, low: int, high: int) -> bool:
    # A value without an order raises TypeError; the caller reports its type.
    return low <= value <= high and isinstance(value, int) and not isinstance(value, bool)


def _check_keys(keys: Sequence[str]) -> None:
    if isinstance(keys, str):  # a str is a sequence, too: each letter would become a key
        raise MessageRefused(f"keys is the text {keys!r:.100}: pass a tuple, ({keys!r:.100},)")
    if spaced := [key for key in keys if " " in key]:
        raise MessageRefused(
            f"the message key {spaced[0]!r:.100} contains a space, which separates keys: "
            f"replace it, such as {spaced[0].replace(' ', '-')!r:.100}"
        )


def size_of(message: Message) -> int:
    """Return the size of a message's body in bytes; a wrong value counts 0 and is refused later."""
    body: object = getattr(message, "body", None)
    return len(body) if isinstance(body, bytes | bytearray | memoryview) else 0


def properties_of(message: Message) -> bytes:
    """Return the stored properties of `message`.

    Raises:
        MessageRefused: they are longer than a record allows, or contain a separator.
    """
    properties = dict(message.properties)
    properties[UNIQ_KEY] = message.message_id
    properties[WAIT] = "true"
    for field, name in TEXT_FIELDS.items():
        if value := getattr(message, field):
            properties[name] = value
    if message.keys:
        properties[KEYS] = " ".join(message.keys)
    if message.delay_level:
        properties[DELAY] = str(message.delay_level)
    if message.delay is not None or message.deliver_at is not None:
        properties |= timer_properties(message)
    encoded = encode_properties(properties)
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise MessageRefused(
            f"the properties have {len(encoded)} bytes, {PROPERTIES_SIZE_MAX} are allowed"
        )
    return encoded
