"""Message traces in Apache's form: what happened to a message, as a record of one line. Pure.

A record is its fields with 0x01 between and 0x02 at the end; a trace message is some records one
after the other, found by the ids and keys of what they tell of. Where Java has no value it writes
"null", and so do we: its reader would lose an empty field at the end.
Source: Apache RocketMQ `TraceDataEncoder`, `SendMessageTraceHookImpl`,
`ConsumeMessageTraceHookImpl`, `EndTransactionTraceHookImpl`, `DefaultRecallMessageTraceHook`,
`AsyncTraceDispatcher`.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.observing.middleware import Delivery, Ending, Recall, Sending
from reliable_mq.errors import UsageError
from reliable_mq.message import Decision, Message, ReceivedMessage, SendResult, SendStatus
from reliable_mq.outcomes import Consumed
from reliable_mq.wire.properties import MSG_REGION, TRACE_ON

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
REGION = "DefaultRegion"
BODY_SIZE_MAX = 128_000
KEYS_SIZE_MAX = 16_000
"""Of the ids and keys of one trace message, which are a property: a record holds twice as much."""
RECORDS_MAX = 200

_FIELD = "\x01"
_END = "\x02"
_NONE = "null"


class MessageKind(IntEnum):
    """What kind of message was sent. Source: `MessageType`, by its ordinals."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class HandlerEnd(IntEnum):
    """How a handler ended. Source: `ConsumeReturnType`, by its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


class TraceRecord(msgspec.Struct, frozen=True):
    """One record: its text, and what it is found by."""

    text: str
    keys: tuple[str, ...]


def sent_records(sending: Sending, trace_topic: str = TRACE_TOPIC) -> Iterator[TraceRecord]:
    """Give the records ("Pub") of messages that are stored, where their broker wants traces.

    What failed, or asked for no answer, leaves no trace, as with Apache's client; nor do traces.
    """
    for message, result in zip(sending.messages, sending.results, strict=True):
        if not isinstance(result, SendResult) or not result.trace_on:
            continue
        if message.topic == trace_topic:
            continue
        yield _record(
            "Pub",
            sending.begun_ms,
            result.region or REGION,
            sending.group,
            message.topic,
            result.message_id,
            message.tag or _NONE,
            " ".join(message.keys) or _NONE,
            sending.origin.address_of(result.queue.broker_name),
            len(message.body),
            int(sending.seconds * 1000),
            int(_kind(sending, message)),
            result.offset_message_id,
            _bool(result.status is SendStatus.SEND_OK),
            keys=(result.message_id, *message.keys),
        )


def _kind(sending: Sending, message: Message) -> MessageKind:
    if sending.verb == "send_half":
        return MessageKind.HALF
    if message.is_delayed:
        return MessageKind.DELAYED
    return MessageKind.ORDERED if message.ordering_key else MessageKind.NORMAL


def begun_records(delivery: Delivery, request_id: str) -> Iterator[TraceRecord]:
    """Give the records ("SubBefore") of messages that go to a handler.

    Args:
        delivery: what has begun.
        request_id: by which those of its end are known.
    """
    for _, message in _traced(delivery):
        yield _record(
            "SubBefore",
            delivery.begun_ms,
            message.properties.get(MSG_REGION, REGION),
            delivery.group,
            request_id,
            message.message_id,
            message.reconsume_times,
            " ".join(message.keys) or _NONE,
            keys=(message.message_id, *message.keys),
        )


def ended_records(delivery: Delivery, request_id: str) -> Iterator[TraceRecord]:
    """Give the records ("SubAfter") of messages that a handler had."""
    cost_ms = int(delivery.seconds * 1000) // len(delivery.messages)
    ended_ms = delivery.begun_ms + int(delivery.seconds * 1000)
    for at, message in _traced(delivery):
        end = _end(delivery, at)
        yield _record(
            "SubAfter",
            request_id,
            message.message_id,
            cost_ms,
            _bool(end is HandlerEnd.SUCCESS),
            " ".join(message.keys) or _NONE,
            int(end),
            ended_ms,
            delivery.group,
            keys=(message.message_id, *message.keys),
        )


def _traced(delivery: Delivery) -> Iterator[tuple[int, ReceivedMessage]]:
    for at, message in enumerate(delivery.messages):
        if message.properties.get(TRACE_ON) != "false":
            yield at, message


def _end(delivery: Delivery, at: int) -> HandlerEnd:
    if isinstance(delivery.error, UsageError):  # what is no outcome
        return HandlerEnd.RETURNED_NOTHING
    if delivery.error is not None:
        return HandlerEnd.EXCEPTION
    if delivery.outcomes is None or isinstance(delivery.outcomes[at], Consumed):
        return HandlerEnd.SUCCESS
    return HandlerEnd.FAILED


_STATES = {
    Decision.COMMIT: "COMMIT_MESSAGE",
    Decision.ROLLBACK: "ROLLBACK_MESSAGE",
    Decision.UNKNOWN: "UNKNOW",
}


def transaction_record(ending: Ending) -> TraceRecord:
    """Return the record ("EndTransaction") of a half message that was ended."""
    half, names = ending.half, Namespace(ending.origin.namespace)
    return _record(
        "EndTransaction",
        ending.begun_ms,
        (half.stored.region if half.stored else "") or REGION,
        names.own(half.group),
        names.own(half.queue.topic),
        half.message_id,
        _NONE,
        _NONE,
        half.asked_by or ending.origin.address_of(half.queue.broker_name),
        int(MessageKind.COMMITTED),
        half.message_id,
        _STATES[ending.decision],
        _bool(bool(half.asked_by)),
        keys=(half.message_id,),
    )


def recall_record(recall: Recall) -> TraceRecord:
    """Return the record ("Recall") of a timed message that a broker gave back, or did not."""
    return _record(
        "Recall",
        recall.begun_ms,
        REGION,
        recall.group,
        recall.topic,
        recall.message_id,
        _bool(recall.error is None),
        keys=(recall.message_id,),
    )


def _record(*fields: str | int, keys: tuple[str, ...]) -> TraceRecord:
    return TraceRecord(_FIELD.join(map(str, fields)) + _END, keys)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def trace_message(topic: str, waiting: deque[TraceRecord]) -> tuple[Message, int]:
    """Take the records from the front that fit into one message.

    Args:
        topic: the topic of traces.
        waiting: what is to be sent; not empty.

    Returns:
        The message, and how many records are in it.
    """
    texts: list[str] = []
    keys: dict[str, None] = {}
    size = keys_size = 0
    while waiting and len(texts) < RECORDS_MAX:
        first = waiting[0]
        grown = size + len(first.text.encode())
        new = [key for key in first.keys if key not in keys]
        keys_grown = keys_size + sum(len(key.encode()) + 1 for key in new)
        if texts and (grown > BODY_SIZE_MAX or keys_grown > KEYS_SIZE_MAX):
            break
        waiting.popleft()
        texts.append(first.text)
        keys.update(dict.fromkeys(new if keys_grown <= KEYS_SIZE_MAX else new[:1]))
        size, keys_size = grown, keys_grown
    return Message(topic=topic, body="".join(texts).encode(), keys=tuple(keys)), len(texts)
