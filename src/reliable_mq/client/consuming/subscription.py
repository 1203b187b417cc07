"""What a consumer asks for, and the form of its handler.

It receives the application's values and checks them. It must not know brokers.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from reliable_mq.client.checked import check_fields, is_integer, is_number
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import (
    GROUP_LENGTH_MAX,
    INVISIBLE_SECONDS_MAX,
    INVISIBLE_SECONDS_MIN,
    RETRY_ATTEMPTS_MAX,
    TOPIC_LENGTH_MAX,
)
from reliable_mq.message import NamedFields, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, EVERY_TAG, RETRY_PREFIX, check_name
from reliable_mq.outcomes import OLD_WORDS, Outcome, old_word

INVISIBLE_SECONDS = 60.0
"""How long a message is hidden from other members if the application says nothing."""
Answer = Outcome | type[Outcome] | Sequence[Outcome | type[Outcome]]
"""What a handler returns: one outcome for each message, or one for all."""
Handler = Callable[[Sequence[ReceivedMessage]], Awaitable[Answer]]
"""Gets 1..batch messages of one topic and queue, returns one outcome for each or one for all.

`Retry` and `Reject` may be raised as well, and count for all. Whatever else it raises is a failed
attempt, as `Retry()`.
"""


class Sql(msgspec.Struct, frozen=True):
    """An SQL92 expression over the properties of messages, which brokers evaluate.

    Example: `Sql("colour = 'red' AND (TAGS IS NULL OR size BETWEEN 2 AND 5)")`. Brokers need
    `enablePropertyFilter=true`.

    Raises:
        ConfigurationError: when the expression is empty. Brokers check the rest.
    """

    expression: str

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.expression.strip():
            raise ConfigurationError('an SQL92 expression is empty: subscribe to "*" instead')


def expression_type(wanted: str | Sql) -> str:
    """Return the type of a topic's filter, as brokers call it."""
    return "SQL92" if isinstance(wanted, Sql) else "TAG"


class Subscription(msgspec.Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """What a consumer group reads, and how.

    Attributes:
        group: the consumer group's name.
        topics: topic -> tag expression, "*" or "paid || refunded", or an SQL92 expression, `Sql`.
        ordered: whether messages with one ordering key are handled one at a time and in order.
            Other keys continue meanwhile: a failing message blocks only its own key. Messages
            without a key have no order. False: all messages run concurrently, without queue locks.
        from_where: the start in a queue for a group without a committed offset.
        from_time_ms: with "timestamp", milliseconds since the epoch.
        max_attempts: number of counted attempts before a message becomes a dead letter.
        concurrency: maximum handler calls at a time.
        batch: maximum messages in one handler call.
        series: maximum messages in a call, instead of one, while calls are short. For a handler
            that takes messages one after another, see `HandlerPool`. With a batch it must be 1.
        allocation: how the members share the queues, see `allocation`; all must use the same.
        broadcasting: whether every member reads all queues and keeps its own offsets. A failed
            message is held and retried here, and dropped after `max_attempts`.
        retry_waits: seconds before the second, third, … attempt of a message, the last for all
            that follow; a `Retry` that says its own time counts more. Exact for a message that is
            held; one that is sent back waits for the next longer of the broker's 18 delay levels,
            2 h at most. Empty: 1 s, 2 s, … 30 s for a held one, and what the broker decides (10 s,
            30 s, 1 min, …) for one that is sent back.
        handling_seconds: time limit of a handler call. After it, an `async def` is cancelled, which
            is a failed attempt. A thread cannot be stopped. So its messages without an ordering key
            are delivered again, and the keys of the others wait. Threads that an `async def` waits
            for (`asyncio.to_thread`) are unknown to the consumer and continue. Infinity: no limit.
        takes_faulty: whether the handler gets messages that cannot be decompressed, with `fault`;
            otherwise they become dead letters without a handler call.
        by: what the members of the group share. "queue": each queue has one member, which reads it.
            "message": every member gets messages of all queues, each message for a time. So a slow
            member holds nobody up, and there may be more members than queues. It keeps no order: it
            needs `ordered=False`. All members must use the same.
        invisible_seconds: only with by="message": how long no other member gets a message. It is
            extended while its handler runs. After a kill, messages come back so much later. 1 s to
            12 h; None: 60 s.
        has_declared_topics: whether somebody has declared the names of the topics. Then a topic
            that nobody has sent to yet is told at level INFO, not as a name that may be wrong.

        Raises:
            ConfigurationError: when a value is invalid.
    """

    group: str
    topics: Mapping[str, str | Sql]
    ordered: bool = True
    from_where: Literal["first", "last", "timestamp"] = "first"
    from_time_ms: int = 0
    max_attempts: int = RETRY_ATTEMPTS_MAX
    concurrency: int = 20
    batch: int = 1
    series: int = 1
    broadcasting: bool = False
    takes_faulty: bool = False
    has_declared_topics: bool = False
    allocation: Allocation = average
    retry_waits: tuple[float, ...] = ()
    handling_seconds: float = 15 * 60.0
    by: Literal["queue", "message"] = "queue"
    invisible_seconds: float | None = None

    def __post_init__(self) -> None:
        check_name("consumer group", self.group, GROUP_LENGTH_MAX)
        _check_topics(self.group, self.topics)
        msgspec.structs.force_setattr(self, "topics", dict(self.topics))  # the caller's may change
        if self.from_where not in {"first", "last", "timestamp"}:
            raise ConfigurationError(f"from_where is {self.from_where!r}: first, last or timestamp")
        self._check_simple()
        if not isinstance(self.retry_waits, Sequence):
            raise ConfigurationError(f"retry_waits is {self.retry_waits!r}: give a tuple")
        for wait in (*self.retry_waits, self.handling_seconds):
            if not isinstance(wait, int | float) or not wait > 0:
                raise ConfigurationError(
                    f"retry_waits or handling_seconds: a time is {wait!r} s: it must be positive"
                )
        if not callable(self.allocation):
            raise ConfigurationError(f"allocation is {self.allocation!r}: give a function")
        if math.inf in self.retry_waits:
            raise ConfigurationError("a wait in retry_waits is infinite: give finite seconds")
        if self.batch > 1 and self.series > 1:
            raise ConfigurationError(f"series is {self.series}: with a batch it must be 1")
        self._check_by()

    @property
    def by_message(self) -> bool:
        """Whether the members share messages instead of queues."""
        return self.by == "message"

    @property
    def invisible_time(self) -> float:
        """By the message: seconds in which no other member gets a message."""
        return INVISIBLE_SECONDS if self.invisible_seconds is None else self.invisible_seconds

    def _check_by(self) -> None:
        if self.by not in {"queue", "message"}:
            raise ConfigurationError(f"by is {self.by!r:.100}: give queue or message")
        self._check_invisible()
        if not self.by_message:
            return
        if self.ordered:
            raise ConfigurationError(
                'by="message" keeps no order: add ordered=False, or consume with by="queue"'
            )
        if self.broadcasting:
            raise ConfigurationError(
                'by="message" shares messages, and broadcasting does not: choose one of them'
            )
        if self.from_where == "timestamp":
            raise ConfigurationError(
                'by="message" begins at first or last: to begin at a time, reset the offsets of'
                " the group (reliable-mq group reset)"
            )

    def _check_invisible(self) -> None:
        seconds = self.invisible_seconds
        if seconds is None:
            return
        if not self.by_message:
            raise ConfigurationError(
                f'invisible_seconds={seconds!r:.100} needs by="message": by the queue no message is'
                " hidden for a time; leave it out (handling_seconds limits a handler call)"
            )
        if not is_number(seconds) or not INVISIBLE_SECONDS_MIN <= seconds <= INVISIBLE_SECONDS_MAX:
            raise ConfigurationError(
                f"invisible_seconds is {seconds!r:.100}: give {INVISIBLE_SECONDS_MIN:g} to"
                f" {INVISIBLE_SECONDS_MAX:g} seconds"
            )

    def _check_simple(self) -> None:
        for name in ("ordered", "broadcasting", "takes_faulty"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigurationError(f"{name} is {value!r:.100}: give True or False")
        if not is_integer(self.from_time_ms):
            raise ConfigurationError(
                f"from_time_ms is {self.from_time_ms!r:.100}: give milliseconds since the epoch"
            )
        for name in ("max_attempts", "concurrency", "batch", "series"):
            value = getattr(self, name)
            if not is_integer(value) or value < 1:
                raise ConfigurationError(f"{name} is {value!r}: it must be 1 or more")

    @property
    def retry_topic(self) -> str:
        """The topic for messages of the group that were sent back."""
        return RETRY_PREFIX + self.group

    @property
    def dead_letter_topic(self) -> str:
        """The topic for messages that no handler of the group could handle."""
        return DEAD_LETTER_PREFIX + self.group

    def retry_wait(self, failed: int) -> float | None:
        """Return the delay after this many attempts plus a failed one; None: the default."""
        return (
            self.retry_waits[min(failed, len(self.retry_waits) - 1)] if self.retry_waits else None
        )

    def all_topics(self) -> dict[str, str | Sql]:
        """Return the filter of each topic, including the retry topic."""
        return {**self.topics, self.retry_topic: EVERY_TAG}


def _check_topics(group: str, topics: Mapping[str, str | Sql]) -> None:
    if not isinstance(topics, Mapping):
        raise ConfigurationError(
            f"the topics are of type {type(topics).__name__}: give a dict of topics and tags, such"
            ' as {"orders": "*"}'
        )
    if not topics:
        raise ConfigurationError(f"consumer group {group} subscribes to no topic")
    for topic, wanted in topics.items():
        check_name("topic", topic, TOPIC_LENGTH_MAX)
        if not isinstance(wanted, str | Sql):
            raise ConfigurationError(
                f"the subscription to topic {topic} is {wanted!r:.100}: give tags, such as"
                ' "paid || refunded", "*" or Sql("…")'
            )


def __getattr__(name: str) -> Any:
    if name not in OLD_WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return old_word(__name__, name)
