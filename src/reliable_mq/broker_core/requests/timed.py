"""Incoming timed messages: their slot of the timer wheel, and the handle to recall them.

Receives a message and its properties. Changes both, so that the message waits in the topic of the
wheel. Refuses a time that is too far ahead, in Apache's words.
Source: Apache RocketMQ `HookUtils`, `SendMessageProcessor`.
"""

import re
from collections.abc import Mapping

from reliable_mq.broker_core.names import TIMER_TOPIC, can_wait, is_retry_topic
from reliable_mq.broker_core.requests.refusal import RequestRefused, too_large
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.timer_log import slot_of
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.java_int import I64_MAX
from reliable_mq.wire.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from reliable_mq.wire.recall_handle import RecallHandle, encode_recall_handle

TIMER_WISHES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties by which a producer sets a time, in order of precedence."""

_NOTES_SIZE = 128  # bytes of properties that the delivery adds
_JAVA_LONG = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether the properties request a time, and the message was not delivered by a timer yet."""
    if TIMER_OUT_MS in properties:
        return False
    return any(wish in properties for wish in TIMER_WISHES)


def put_into_wheel(
    state: BrokerState, message: StoredMessage, properties: dict[str, str], now_ms: int
) -> None:
    """Make a message wait in the wheel. If its time has passed, the message is not changed.

    Its slot begins before its time, never at it, because a slot is delivered when it is over.

    Raises:
        RequestRefused: when the time does not parse or is too far ahead, when timers are off, or
            when too many messages wait.
        MessageRefused: when its properties cannot be stored.
    """
    if not state.config.timer_wheel:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    due_ms = _due_ms(state, properties, now_ms)
    if due_ms <= now_ms:
        if TIMER_DELETED_KEY in properties:
            raise _illegal_time(state)
        return
    if due_ms - now_ms > state.config.timer_seconds_max * 1000:
        raise _illegal_time(state)
    if not can_wait(message.topic, message.queue_id):  # the topic may be older than this rule
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"a message of topic[{message.topic}] cannot be timed."
        )
    _refuse_too_many(state, properties)
    precision_ms = state.config.timer_precision_ms
    properties[TIMER_OUT_MS] = str(slot_of(due_ms, precision_ms))
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    if len(encode_properties(properties)) > PROPERTIES_SIZE_MAX - _NOTES_SIZE:
        raise too_large(state.config.message_size_max)
    message.topic, message.queue_id = TIMER_TOPIC, 0


def _refuse_too_many(state: BrokerState, properties: Mapping[str, str]) -> None:
    """Refuse a message while too many wait; a recall makes room, and is always accepted."""
    timers, most = state.timers, state.config.timed_messages_max
    if TIMER_DELETED_KEY not in properties and timers.counts.total + timers.not_taken_up >= most:
        timers.refused += 1
        raise RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            f"[QUOTA]broker busy, {most} timed messages wait for their time (maxTimedMessages); "
            "retry later",
        )


def _due_ms(state: BrokerState, properties: Mapping[str, str], now_ms: int) -> int:
    wish = next(name for name in TIMER_WISHES if name in properties)
    number = java_long(properties[wish])
    if number is None:
        raise _illegal_time(state)
    if wish == TIMER_DELIVER_MS:
        return number
    return now_ms + number * (1000 if wish == TIMER_DELAY_SEC else 1)


def java_long(text: str) -> int | None:
    """Return the number that Java's `Long.parseLong` would return; None for invalid text."""
    number = int(text) if _JAVA_LONG.fullmatch(text) else None
    return number if number is not None and -I64_MAX <= number <= I64_MAX else None


def _illegal_time(state: BrokerState) -> RequestRefused:
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{state.config.timer_seconds_max * 1000}ms; or if set del msg, the delay time should be "
        "bigger than the current time",
    )


def recall_handle(state: BrokerState, message: StoredMessage) -> str:
    """Return the handle that recalls a stored timed message; "" if it cannot be recalled."""
    properties = decode_properties(message.properties)
    out_ms = java_long(properties.get(TIMER_OUT_MS, ""))
    topic = properties.get(REAL_TOPIC, "")
    if out_ms is None or not topic or is_retry_topic(topic):
        return ""
    handle = RecallHandle(topic, state.config.broker_name, str(out_ms + 1), properties[UNIQ_KEY])
    return encode_recall_handle(handle)
