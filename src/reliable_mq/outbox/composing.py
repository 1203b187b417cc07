"""Make a stub from the options of a caller. Pure: knows no database and no clock.

Refuses a message that could not be sent, found or stored later, while the caller can still act.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import msgspec
from pydantic import BaseModel

from reliable_mq import trace_context
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX, PROPERTIES_SIZE_MAX
from reliable_mq.message import CORRELATION_ID, NOTICE_TOPIC_PREFIX, Message, new_message_id
from reliable_mq.message_checks import check_message, check_topic, properties_of
from reliable_mq.message_digest import RESERVED
from reliable_mq.names import check_name
from reliable_mq.not_payloads import is_row
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.outbox.delay import deliver_time_of
from reliable_mq.outbox.message_options import ContentOptions, ManyOptions, no_option
from reliable_mq.outbox.payload import encode_payload
from reliable_mq.outbox.stub import Stub, check_short_text, check_texts, message_of
from reliable_mq.plain_text import a_kind
from reliable_mq.trace_context import trace_properties, with_context

_ID_LENGTH = 32
_LEGAL_ID = re.compile(f"[0-9A-Za-z_-]{{{_ID_LENGTH}}}")

_SOME_TOPIC = NOTICE_TOPIC_PREFIX + "0" * 16  # as long as every topic of notices
_ADDED_SIZE_MAX = 1_024
"""Bytes that a signature, brokers and their retries add to the properties."""
_FEW_GROUPS = 16  # their names cannot be too long for a record's properties

RandomBytes = Callable[[int], bytes]


_NO_KEYS = (bytes, bytearray, dict, list, tuple, set, frozenset)


class Contents(NamedTuple):
    """What a caller wants to send, encoded and checked. An empty `message_id`: make a new one."""

    body: bytes
    content_type: str
    tag: str
    key: str
    ordering_key: str
    properties: dict[str, str]
    message_id: str


def contents_of(
    payload: Any,
    *,
    tag: str = "",
    key: object = "",
    ordering_key: object = "",
    properties: Mapping[str, str] | None = None,
    content_type: str = "",
    correlation_id: object = "",
    message_id: str = "",
    **unknown: object,
) -> Contents:
    """Return the contents that a stub and a message without a stub have in common.

    Raises:
        TypeError: there is no such option.
        MessageRefused: the payload, a text or a property cannot be sent.
        UsageError: an option has a wrong type.
    """
    if unknown:
        raise no_option(min(unknown))
    body, content_type = encode_payload(payload, content_type)
    sent = with_trace({} if properties is None else properties)
    # An option that travels as a property is added to `sent` here.
    if correlation_id != "" and correlation_id is not None:
        add_correlation(sent, key_text(correlation_id))
    contents = Contents(
        body=body,
        content_type=content_type,
        tag=tag,
        key=key_text(key),
        ordering_key=key_text(ordering_key),
        properties=sent,
        message_id=checked_id(message_id),
    )
    check_texts(contents.tag, contents.key, contents.ordering_key)
    return contents


def add_correlation(properties: dict[str, str], correlation_id: str) -> None:
    """Add the property with a correlation id.

    Raises:
        MessageRefused: it is too long or not printable, or the properties have another one.
    """
    check_short_text("correlation_id", correlation_id)
    if properties.setdefault(CORRELATION_ID, correlation_id) != correlation_id:
        raise MessageRefused(
            f"correlation_id={correlation_id!r} and the property {CORRELATION_ID}="
            f"{properties[CORRELATION_ID]!r:.100}: leave one out"
        )


class Composer:
    """Makes stubs from the callers' options.

    Args:
        groups_of_topic: returns the consumer groups that a message of a topic and tag must reach,
            if the caller does not name them.
        random_bytes: returns this number of random bytes.
        timer_range: how far ahead brokers accept a message's time, in seconds.
        known_groups: a cache of them by topic and tag. Its owner empties it at each declaration.
        envelopes: the envelopes of topics that have one.
    """

    def __init__(
        self,
        groups_of_topic: Callable[[str, str], tuple[str, ...]],
        random_bytes: RandomBytes,
        timer_range: float,
        known_groups: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({}),
        envelopes: Mapping[str, Envelope] = MappingProxyType({}),
    ) -> None:
        self._known_groups = known_groups
        self._envelopes = envelopes
        self._groups_of_topic = groups_of_topic
        self._random_bytes = random_bytes
        self._timer_range = timer_range

    def stub(
        self,
        now: float,
        topic: str,
        payload: Any,
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        required_groups: tuple[str, ...] | None = None,
        **options: Unpack[ContentOptions],
    ) -> Stub:
        """Return the stub of one message, written at `now`; see `Transaction.send`."""
        groups, tag = None, options.get("tag", "")
        if required_groups is None and isinstance(topic, str) and isinstance(tag, str):
            groups = self._known_groups.get((topic, tag))
        if groups is None:
            check_topic(topic)  # before a wrong name could find no groups
        contents = contents_of(payload, **options)
        if required_groups is not None:
            groups = checked_groups(required_groups)
        elif groups is None:
            groups = self._groups_of_topic(topic, contents.tag)
        message_id = contents.message_id or fresh_message_id(now, self._random_bytes)
        if self._envelopes and topic in self._envelopes:
            contents = wrapped(contents, self._envelopes[topic], topic, message_id, now)
        stub = Stub(
            seq=0,
            message_id=message_id,
            topic=topic,
            content=contents.body,
            tag=contents.tag,
            message_key=contents.key,
            ordering_key=contents.ordering_key,
            content_type=contents.content_type,
            properties=contents.properties,
            required_groups=groups,
            deliver_time=None
            if delay is None and deliver_at is None
            else deliver_time_of(delay, deliver_at, now),
        )
        if stub.deliver_time is not None and stub.ordering_key:
            self._check_order(stub.deliver_time - now)
        has_more = bool(stub.properties) or len(groups) > _FEW_GROUPS
        if has_more or stub.message_key:  # topic and body were checked above
            message = message_of(stub, confirm_to=_SOME_TOPIC)
            check_message(message)
            if has_more:
                check_room(message)
        return stub

    def _check_order(self, rest: float) -> None:
        """Refuse an ordering key for a message that would wait in the database.

        An unsent message holds up the later messages of its key.

        Raises:
            UsageError: the message would wait in the database.
        """
        if rest > self._timer_range:
            raise UsageError(
                f"an ordering key and a time more than timer_range_seconds={self._timer_range:g} "
                "ahead: later messages of the key would wait until then; leave one of the two out"
            )

    def stubs(self, now: float, topic: str, payloads: Any, options: ManyOptions[Any]) -> list[Stub]:
        """Return the stubs of many messages; see `Transaction.send_many`."""
        same: dict[str, Any] = {k: value for k, value in options.items() if not callable(value)}
        own = {name: value for name, value in options.items() if callable(value)}
        if "message_id" in same:
            raise UsageError("send_many: message_id must be a function, or all would have one id")
        if isinstance(payloads, str | bytes | Mapping | BaseModel):
            raise UsageError(
                f"send_many: a {type(payloads).__name__} is one payload: use send, or a list"
            )
        if not isinstance(payloads, Iterable):
            raise UsageError(f"send_many: {payloads!r:.100} is not a list of payloads")
        made: list[Stub] = []
        for payload in payloads:
            if not made:
                _check_no_field(payload, same)
            of_it = {name: of(payload) for name, of in own.items()}
            made.append(self.stub(now, topic, payload, **same, **of_it))
        return made


def _check_no_field(payload: Any, same: Mapping[str, Any]) -> None:
    """Check that a key for all messages is not the name of a field of their payloads.

    Raises:
        UsageError: it is.
    """
    for option in ("key", "ordering_key", "correlation_id"):
        name = same.get(option)
        if not isinstance(name, str) or not name:
            continue
        is_item = isinstance(payload, Mapping)
        fields = payload if is_item else getattr(type(payload), "__annotations__", ())
        if name in fields:
            part = f"payload[{name!r}]" if is_item else f"payload.{name}"
            raise UsageError(
                f"send_many: {option}={name!r} would be the {option} of every message: for the "
                f"field of each one write {option}=lambda payload: {part}"
            )


def wrapped(
    contents: Contents, envelope: Envelope, topic: str, message_id: str, now: float
) -> Contents:
    """Return the contents in the envelope of their topic."""
    body, content_type, added = envelope.wrap(
        contents.body, contents.content_type, message_id, now, topic, contents.key
    )
    properties = {**contents.properties, **added}
    return contents._replace(body=body, content_type=content_type, properties=properties)


def check_room(message: Message) -> None:
    """Refuse properties that leave no room for added ones: no broker would ever store them.

    The room for a signature stays free even without keys: a resend may have keys.

    Raises:
        MessageRefused: the properties are too long, or contain a separator.
    """
    size, allowed = len(properties_of(message)), PROPERTIES_SIZE_MAX - _ADDED_SIZE_MAX
    if size > allowed:
        raise MessageRefused(f"the properties have {size} bytes, {allowed} are allowed")


def with_trace(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with the trace context, if there is room for both.

    Raises:
        UsageError: `properties` is not a mapping.
        MessageRefused: brokers, clients or this library write a property of that name. Its value
            would be lost or changed on the way; no signature and no comparison would cover it.
    """
    if not isinstance(properties, Mapping):
        raise UsageError(f"properties={properties!r:.100}: a dict of names and texts is needed")
    if taken := RESERVED.intersection(properties):
        raise MessageRefused(
            f"property {min(taken)} is written by brokers, clients or reliable_mq: use another name"
        )
    if trace_context.otel is None:
        current = trace_context.handled.get()
    else:
        current = trace_context.contexts.get_current()
    return with_context(properties, trace_properties()) if current else dict(properties)


def key_text(key: object) -> str:
    """Return a key as a message carries it. None, as from a nullable column, is no key.

    Raises:
        MessageRefused: it is a collection, bytes, or an object that has no text of its own.
    """
    if isinstance(key, str):
        return key
    kind: Any = type(key)
    if kind is int:
        return str(key)
    has_no_text = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    if isinstance(key, _NO_KEYS) or has_no_text or is_record(kind):
        how = "; give its id" if is_record(kind) else f": {key!r:.80}"
        raise MessageRefused(f"a key is a text or a number, not {a_kind(key)}{how}")
    if isinstance(key, float) and not math.isfinite(key):
        raise MessageRefused(f"a key is a text or a number, not {key}")
    return "" if key is None else str(key)


@lru_cache(maxsize=1024)
def is_record(kind: type) -> bool:
    """Return whether the text of such an object shows its fields, or is for people: it is no key.

    These are rows, models and dataclasses. A dataclass may have a text of its own.
    """
    if dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel | msgspec.Struct):
        return kind.__str__ in (object.__str__, BaseModel.__str__)
    return is_row(kind)


def checked_groups(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the consumer groups that a caller named.

    Raises:
        UsageError: `groups` is one name instead of several, or a name is illegal.
    """
    if isinstance(groups, str) or not isinstance(groups, Collection):
        raise UsageError(f"required_groups={groups!r}: a tuple of names is needed")
    for group in groups:
        check_name("consumer group", group, GROUP_LENGTH_MAX)
    return groups


def fresh_message_id(now: float, random_bytes: RandomBytes) -> str:
    """Return a new message id for the time `now` (seconds since the epoch)."""
    return new_message_id(int(now * 1000), random_bytes(10))


def checked_id(message_id: str) -> str:
    """Return the id that a caller chose; empty is none.

    Raises:
        UsageError: the id does not have 32 characters, or contains illegal ones.
    """
    if message_id and not (isinstance(message_id, str) and _LEGAL_ID.fullmatch(message_id)):
        raise UsageError(
            f"message_id {message_id!r} must have {_ID_LENGTH} characters of a-z A-Z 0-9 _ -"
        )
    return message_id


def ids_used(stubs: Sequence[Stub]) -> MessageRefused:
    """Return the error of message ids that a caller chose, and one of which is in the table."""
    times = Counter(stub.message_id for stub in stubs)
    ((most, count),) = times.most_common(1)
    if count > 1:
        told = f"the message id {most} stands twice in one call"
    elif len(times) == 1:
        told = f"the message id {most} is used already"
    else:
        told = f"one of these {len(times)} message ids is used already"
    return MessageRefused(
        f"{told}: give each message an id of its own, or leave message_id out; roll back this"
        " transaction or its savepoint"
    )
