"""Message traces in Apache's format: each event of a message is a record of one line. Pure.

A record's fields are separated by 0x01, and the record ends with 0x02. A trace message is a
sequence of records. Its keys are the ids and keys of the traced messages. A missing value is
written as "null", as in Java: Java's reader would lose an empty last field.
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
"""Limit for the ids and keys of one trace message, a property. A record can be twice as large."""
RECORDS_MAX = 200

_FIELD = "\x01"
_END = "\x02"
_NONE = "null"


class MessageKind(IntEnum):
    """The kind of a sent message. Source: `MessageType`, by its ordinals."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class HandlerEnd(IntEnum):
    """The end of a handler call. Source: `ConsumeReturnType`, by its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


class TraceRecord(msgspec.Struct, frozen=True):
    """One record: its text, and its keys."""

    text: str
    keys: tuple[str, ...]


def sent_records(sending: Sending, trace_topic: str = TRACE_TOPIC) -> Iterator[TraceRecord]:
    """Yield records ("Pub") of stored messages, if their broker wants traces.

    Failed and one-way sends have no record, as in Apache's client. Traces have none either.
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
    """Yield records ("SubBefore") of messages before a handler.

    Args:
        delivery: the delivery that has begun.
        request_id: joins these records with those of the end.
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
    """Yield records ("SubAfter") of messages after a handler."""
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
    if isinstance(delivery.error, UsageError):  # an invalid outcome
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
    """Return the record ("EndTransaction") of an ended half message."""
    half, names = ending.half, Namespace(ending.origin.namespace)
    return _record(
        "EndTransaction",
        ending.begun_ms,
        (half.stored.region if half.stored else "") or REGION,
        names.own_name(half.group),
        names.own_name(half.queue.topic),
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
    """Return the record ("Recall") of the recall of a timed message, successful or not."""
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
    """Remove from the front the records that fit into one message.

    Args:
        topic: the topic of traces.
        waiting: the waiting records; not empty.

    Returns:
        The message, and the number of its records.
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
