"""The nouns that every station moves: what is sent, where it was stored, what is received."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import UsageError

SHARDING_KEY = "__SHARDINGKEY"
CONTENT_TYPE = "CONTENT_TYPE"
"""The user property that tells a consumer how the body was made."""
RESENT = "RESENT"
"""The property of a message that was missed and sent again: see that it has had its effect."""
CONFIRM_TO = "CONFIRM_TO"
"""The property that says where the database of a message's stub reads notices, and of which
consumer groups: `topic:group,group`."""
CONSUMED_BY = "CONSUMED_BY"
"""The property of a message sent again that says which consumer groups of other databases have told
that they consumed it, and when the message was written: `seconds:group,group`."""
SIGNATURE = "SIGNATURE"
"""The property that proves who sent a message: see `signature`."""
NOTICE_TOPIC_PREFIX = "rmq_notices_"
_SECONDS_DIGITS_MAX = 12
_NOTICE_TOPIC = re.compile(NOTICE_TOPIC_PREFIX + "[0-9a-f]{16}")


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic at one broker. Sorts as Apache's client sorts queues for a rebalance."""

    topic: str
    broker_name: str
    queue_id: int


class _Addressed(msgspec.Struct, frozen=True):
    """What every message has; these two may be given by position: `Message("orders", b"…")`."""

    topic: str
    body: bytes


@decodable
class Message(_Addressed, frozen=True, kw_only=True):
    """What an application sends: `Message("orders", b"…", tag="paid")`.

    `message_id` is the UNIQ_KEY: it stays the same through every resend and redelivery, and is
    what idempotency and reconciliation match on. The producer makes one when it is empty.
    Messages with one `ordering_key` go to one queue and are handled in order.

    A property without a value is not stored, nor is an empty key: receivers find none.

    At most one of three says that it is shown to consumers later: `delay_level` (1..18, of every
    broker), `delay` (from when the broker has it, to the millisecond) or `deliver_at` (an instant
    with a time zone; one that has passed delays nothing). The latter two are timers, which brokers
    before 5.0 do not have; how far ahead they may lie is the broker's to say (3 days).
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
        """Whether a timer of the broker shows it, and not a delay level."""
        return self.delay is not None or self.deliver_at is not None

    @property
    def is_delayed(self) -> bool:
        """Whether it is shown later than it is stored; it cannot share a request then."""
        return bool(self.delay_level) or self.is_timed


class SendStatus(Enum):
    """What the broker had done when it answered. In every case the message is stored."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class Decision(Enum):
    """What becomes of a half message: its transaction committed, it did not, nobody knows yet."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message was stored. `queue_offset` counts messages in `queue`, from 0.

    `recall_handle` names a timed message that waits, so that `recall` can take it back; it is empty
    for any other. Such a message has its `queue_offset` among those that wait.
    `region` is what the broker calls the place where it stands, and `trace_on` whether it wants
    messages traced; see `MessageTraceMiddleware`. `tries` says how many requests it took: after
    more than one the message may be stored twice.
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

    `topic` is the topic it was sent to, also when this delivery is a retry; `queue` is where this
    delivery was read from. Times are milliseconds since the epoch. `in_doubt` says that an earlier
    attempt began and nobody knows whether it finished (promise P5). `fault` says why the body could
    not be unpacked; it is then as it is stored.
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
        """How the body was made, as its sender said; empty when it did not (a foreign client)."""
        return self.properties.get(CONTENT_TYPE, "")


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """A half message at a broker: how it is ended.

    `queue` is where the message is shown once it is committed. `half_offset` and
    `commit_log_offset` are the half's own place. `asked_by` is the address of the broker that asked
    for it, empty while nobody did. `stored` is what a broker answered to the half, None for one
    that was asked for.
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
    """A broker's question what became of a half, and the message in it."""

    half: Half
    message: ReceivedMessage


def new_message_id(now_ms: int, random_bytes: bytes) -> str:
    """Return a message id of 32 upper-case hex digits that sorts by time (RFC 9562, UUIDv7).

    Args:
        now_ms: milliseconds since the epoch; its low 48 bits lead the id.
        random_bytes: ten random bytes; 74 of their bits are used.

    Raises:
        UsageError: when `random_bytes` is not ten bytes.
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

    Anybody can write properties; what is no topic of notices is taken for none, so that nobody
    makes consumers send to other topics.
    """
    topic, _, groups = properties.get(CONFIRM_TO, "").partition(":")
    return topic if group in groups.split(",") and _NOTICE_TOPIC.fullmatch(topic) else ""


def written_before_consumed(properties: Mapping[str, str], group: str) -> float | None:
    """Return when a message was written that its sender knows `group` to have consumed.

    Seconds since the epoch; None when the sender knows nothing of it, or says it in a way that does
    not read.
    """
    written, _, groups = properties.get(CONSUMED_BY, "").partition(":")
    known = group in groups.split(",") and written.isascii() and written.isdigit()
    return float(written) if known and len(written) <= _SECONDS_DIGITS_MAX else None
