"""The nouns that every station passes on: a sent message, its place, a received message."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import UsageError
from reliable_mq.misspelt import check_names

SHARDING_KEY = "__SHARDINGKEY"
CORRELATION_ID = "CORRELATION_ID"
"""The property that messages of one request or process have in common, for people who look for
them. A request of a client that waits for its reply (`request`) has one of its own."""
CONTENT_TYPE = "CONTENT_TYPE"
"""The user property with the format (media type) of the body."""
RESENT = "RESENT"
"""The property of a message that was missed and sent again: check whether it has had its effect."""
CONFIRM_TO = "CONFIRM_TO"
"""The property with the topic where the database of a message's stub reads notices, and with the
consumer groups that must send them: `topic:group,group`."""
CONSUMED_BY = "CONSUMED_BY"
"""The property of a resent message: which consumer groups of other databases have reported its
consumption, and when the message was written: `seconds:group,group`."""
SIGNATURE = "SIGNATURE"
"""The property that proves the sender of a message: see `signature`."""
TEXT_FIELDS: Mapping[str, str] = {
    "tag": "TAGS",
    "ordering_key": SHARDING_KEY,
}
"""The fields of `Message` that are sent as one property each, and the names of the properties."""
NOTICE_TOPIC_PREFIX = "rmq_notices_"
_SECONDS_DIGITS_MAX = 12
_NOTICE_TOPIC = re.compile(NOTICE_TOPIC_PREFIX + "[0-9a-f]{16}")


class NamedFields(msgspec.StructMeta):
    """The class of a struct whose call names the field that a misspelt name was meant to be."""

    if not TYPE_CHECKING:  # type checkers see the fields

        def __call__(self, *given: Any, **named: Any) -> Any:
            """Make a value."""
            try:
                return msgspec.StructMeta.__call__(self, *given, **named)
            except TypeError:
                check_names(self.__name__, named, self.__struct_fields__)
                raise


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic at one broker. Sorts as Apache's client sorts queues for a rebalance."""

    topic: str
    broker_name: str
    queue_id: int


class _Addressed(msgspec.Struct, frozen=True):
    """Fields of every message. These two may be passed by position: `Message("orders", b"…")`."""

    topic: str
    body: bytes


@decodable
class Message(_Addressed, frozen=True, kw_only=True, metaclass=NamedFields):
    """A message that an application sends: `Message("orders", b"…", tag="paid")`.

    At most one of `delay_level`, `delay` and `deliver_at` makes it visible later. The last two are
    timers, which brokers before 5.0 do not have. The broker limits how far ahead they may lie
    (3 days).

    Attributes:
        topic: the name of its topic.
        body: its content. The broker does not read it.
        tag: a word by which consumer groups select messages. Default "": none.
        keys: words by which people find it at the broker, an order number say. An empty key is not
            stored. Default: none.
        message_id: its id, the property UNIQ_KEY at the broker. It stays the same through every
            resend and redelivery; idempotency and reconciliation use it. Default "": the producer
            makes one.
        ordering_key: messages with one key go to one queue and are handled in order. Default "":
            no order.
        delay_level: 1 to 18, a wait by Apache's table; works with every broker. Default 0: none.
        delay: time from its arrival at the broker, to the millisecond. Default None.
        deliver_at: an instant with a time zone; one in the past delays nothing. Default None.
        flag: a number for the application's own use. Default 0.
        properties: texts by name, for the receiver. A property without a value is not stored.
            Default: none.
    """

    tag: str = ""
    keys: tuple[str, ...] = ()
    message_id: str = ""
    ordering_key: str = ""
    delay_level: int = 0
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    flag: int = 0
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        """Whether a timer of the broker makes it visible, and not a delay level."""
        return self.delay is not None or self.deliver_at is not None

    @property
    def is_delayed(self) -> bool:
        """Whether it becomes visible later than it is stored; then it cannot share a request."""
        return bool(self.delay_level) or self.is_timed


named_message: Callable[..., Message] = partial(msgspec.StructMeta.__call__, Message)
"""Makes a `Message`, and does not look for misspelt names. It costs less for each message."""


class SendStatus(Enum):
    """What the broker had done before it answered. In every case the message is stored."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12

    @property
    def lacks_slaves(self) -> bool:
        """Whether the master has stored and delivers the message, and too few slaves have it."""
        return self in {SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT}

    @property
    def doubt(self) -> str:
        """What may still be lost, and what to do about it."""
        if self.lacks_slaves:
            return (
                "the master has stored it, and too few slaves have; start its slaves, see "
                "reliable-mq doctor"
            )
        return "what the broker stored may not survive a crash"


class Decision(Enum):
    """The end of a half message's transaction: committed, rolled back, not known yet."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message was stored.

    Attributes:
        status: what the broker had done before it answered.
        message_id: the message's id.
        offset_message_id: the broker's own name for the message at its place.
        queue: the queue that has it.
        queue_offset: its number in `queue`, from 0; of a timed message, among those that wait.
        recall_handle: names a timed message that waits, for a `recall`; "" for any other message.
        region: the broker's name for its location.
        trace_on: whether the broker wants messages traced; see `MessageTraceMiddleware`.
        tries: how many requests were made. After more than one, it may be stored twice.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""
    region: str = ""
    trace_on: bool = True
    tries: int = 1


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message.

    Attributes:
        topic: the topic it was sent to, even if this delivery is a retry.
        body: its content.
        tag: see `Message`, as `keys`, `message_id`, `ordering_key` and `properties`.
        queue: the queue that this delivery was read from.
        queue_offset: its number in `queue`, from 0.
        commit_log_offset: where it lies in the broker's log, in bytes.
        offset_message_id: the broker's own name for the message at its place.
        born_time_ms: when it was sent, by the sender's clock, in milliseconds since the epoch.
        store_time_ms: when it was stored, by the broker's clock, in milliseconds since the epoch.
        reconsume_times: how many earlier attempts the broker has counted.
        in_doubt: an earlier attempt began, and it is unknown whether it finished (promise P5).
        fault: why the body could not be decompressed; the body is then as it is stored. "": it
            could.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_id: str = ""
    ordering_key: str = ""
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int = 0
    offset_message_id: str = ""
    born_time_ms: int = 0
    store_time_ms: int = 0
    reconsume_times: int = 0
    in_doubt: bool = False
    fault: str = ""

    @property
    def content_type(self) -> str:
        """The format of the body by its sender; empty if not given (another client)."""
        return self.properties.get(CONTENT_TYPE, "")

    @property
    def correlation_id(self) -> str:
        """What its sender gave as `correlation_id=`; empty if nothing."""
        return self.properties.get(CORRELATION_ID, "")


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """A half message at a broker, with what is needed to end it.

    Attributes:
        message_id: its id.
        group: the producer group that is asked how it ends.
        queue: where the message becomes visible after the commit.
        ordering_key: see `Message`.
        half_offset: the half's own number among the halves.
        commit_log_offset: where the half lies in the broker's log, in bytes.
        asked_by: the address of the broker that checked back on it; "": none has.
        stored: the broker's answer to the half; None after a check-back.
    """

    message_id: str
    group: str
    queue: MessageQueue
    ordering_key: str = ""
    half_offset: int
    commit_log_offset: int
    asked_by: str = ""
    stored: SendResult | None = None


class CheckBack(msgspec.Struct, frozen=True):
    """A broker's question how a half's transaction ended, and the message in the half."""

    half: Half
    message: ReceivedMessage


def new_message_id(now_ms: int, random_bytes: bytes) -> str:
    """Return a message id of 32 upper-case hex digits that sorts by time (RFC 9562, UUIDv7).

    Args:
        now_ms: milliseconds since the epoch; its low 48 bits lead the id.
        random_bytes: ten random bytes; 74 of their bits are used.

    Raises:
        UsageError: `random_bytes` is not ten bytes.
    """
    if len(random_bytes) != 10:
        raise UsageError("a message id takes exactly ten random bytes")
    random = int.from_bytes(random_bytes)
    version_and_high = 0x7000 | (random >> 68)
    variant_and_low = (0b10 << 62) | (random & ((1 << 62) - 1))
    value = ((now_ms & 0xFFFFFFFFFFFF) << 80) | (version_and_high << 64) | variant_and_low
    return f"{value:032X}"


def notice_topic_of(properties: Mapping[str, str], group: str) -> str:
    """Return the topic in which a message's sender waits for notices of `group`; "" for none.

    Anybody can write properties. A name that is not a topic of notices counts as none, so that
    nobody can make consumers send to other topics.
    """
    topic, _, groups = properties.get(CONFIRM_TO, "").partition(":")
    return topic if group in groups.split(",") and _NOTICE_TOPIC.fullmatch(topic) else ""


def written_before_consumed(properties: Mapping[str, str], group: str) -> float | None:
    """Return when a message was written, if its sender knows that `group` has consumed it.

    Seconds since the epoch; None: the sender does not know, or the property cannot be read.
    """
    written, _, groups = properties.get(CONSUMED_BY, "").partition(":")
    known = group in groups.split(",") and written.isascii() and written.isdigit()
    return float(written) if known and len(written) <= _SECONDS_DIGITS_MAX else None
