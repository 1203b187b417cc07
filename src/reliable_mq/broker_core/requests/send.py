"""Sends: store a message, and reply when it is stored.

The stored properties are the client's bytes followed by the broker's. They are parsed only if they
contain a name that the broker decides about.
Source: Apache RocketMQ `SendMessageProcessor`, `AbstractSendMessageProcessor`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import contains

from reliable_mq.broker_core.delivery.schedule import delayed
from reliable_mq.broker_core.names import (
    TIMER_TOPIC,
    dead_letter_topic,
    is_retry_topic,
    is_send_forbidden,
)
from reliable_mq.broker_core.pressure import OVERLOAD
from reliable_mq.broker_core.requests.alike_batches import append_alike
from reliable_mq.broker_core.requests.message_type import check_message_type
from reliable_mq.broker_core.requests.refusal import (
    RequestRefused,
    no_such_queue,
    too_large,
)
from reliable_mq.broker_core.requests.timed import (
    TIMER_WISHES,
    is_timed,
    put_into_wheel,
    recall_handle,
)
from reliable_mq.broker_core.requests.topic_of_send import topic_for
from reliable_mq.broker_core.requests.transactions import append_half, half_refused, is_half
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.batch_body import decode_alike, decode_columns
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import ONE_WAY_FLAG, Command
from reliable_mq.wire.headers import SendMessageHeader, SendMessageHeaderV2
from reliable_mq.wire.popped_record import may_have_pop_properties, without_pop_properties
from reliable_mq.wire.properties import (
    CLUSTER,
    DELAY,
    FIRST_POP_TIME,
    MSG_REGION,
    POP_CK,
    PROPERTY_SEPARATOR,
    TRACE_ON,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from reliable_mq.wire.record import HOSTLESS_SIZE, TRANSACTION_MASK

_END = PROPERTY_SEPARATOR.encode()
_UNIQ_KEY = f"{UNIQ_KEY}\x01".encode()
# A batch of many tiny messages takes many times its size in the log, and blocks other clients while
# its records are made. A full batch passes if its bodies are a bit longer than the topic's name.
_BATCH_GROWTH_MAX = 2  # of `maxMessageSize`
_OWN_SIZE = len(_END) + len(_UNIQ_KEY) + 32 + len(_END)  # bytes that the broker may add
_END_CODE = _END[0]
_PREPARED = f"{TRANSACTION_PREPARED}\x01".encode()
# Names that the broker decides about or adds itself; the timers' names have several endings. Names
# with the same first letter are one branch: each branch is tried at each property of each message.
_T_NAMES = "|".join(name[1:] for name in (TRANSACTION_PREPARED, TRACE_ON, r"TIMER_DEL\w*"))
_POP_NAMES = (rf"{POP_CK}(?:_OFFSET)?", FIRST_POP_TIME)
_NAMED_HERE = (DELAY, MSG_REGION, CLUSTER, f"T(?:{_T_NAMES})", *_POP_NAMES)
_named_here = re.compile(f"\x02(?:{'|'.join(_NAMED_HERE)})\x01".encode()).search


def send_message(state: BrokerState, request: Request) -> Command | None:
    """SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    if state.pressure.refusal is not None:
        state.pressure.check()
    command = request.command
    header: SendMessageHeader | None = command.send_header
    if header is None:
        is_v1 = command.code == RequestCode.SEND_MESSAGE
        header = (SendMessageHeader if is_v1 else SendMessageHeaderV2).decode(command.ext_fields)
    if state.quotas.limit_sends:
        known = header.topic if header.topic in state.topics.by_name else ""
        state.quotas.take_send(known, request.user, len(command.body), request.now_ms)
    is_batch = header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE
    properties = (header.properties or "").encode()
    if not is_batch:
        if _send_plain(state, request, header, properties):
            return None
        properties = without_pop_properties(properties)
    if state.answers.unsaved >= state.pressure.limits.waiting_max:
        _refuse_unsaved(state, header.topic)
    topic = topic_for(state, header, request)
    _check(state, request, header, topic, properties)
    message = _message(state, request, header, topic)
    queue_id = message.queue_id
    offsets: Sequence[int] = ()
    if is_batch:
        _check_batch(state, header, command.body)
        place, offsets = _append_batch(state, message, command.body, request.now_ms)
        state.statistics.batched(message.topic, len(offsets))
        if state.quotas.limit_sends:
            state.quotas.charge_send(header.topic, request.user, len(offsets) - 1)
    elif _PREPARED in properties and _send_half(state, request, topic, message, properties):
        return None
    else:
        place = _append_one(state, message, properties, request.now_ms)
    if not command.is_oneway:
        handle = recall_handle(state, message) if message.topic == TIMER_TOPIC else ""
        frame = state.send_reply.encode(command, queue_id, place, offsets, handle)
        _reply(state, request, topic, place.end, frame)
    return None


def _refuse_unsaved(state: BrokerState, topic: str) -> None:
    """Refuse a send to a topic that is not saved: many wait for the table of topics already.

    Sends to other topics wait for the log only: a flood of new topics does not hold them up.

    Raises:
        RequestRefused: the topic is new, or would be.
    """
    if topic in state.new_topics or topic not in state.topics.by_name:
        state.pressure.refused += 1
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, OVERLOAD)


def _reply(
    state: BrokerState, request: Request, topic: TopicConfig, end: int, frame: bytes
) -> None:
    """Reply when the message is stored; for a new topic, also when the topic is saved."""
    if state.new_topics and topic.topic_name in state.new_topics:
        state.new_topics[topic.topic_name].append((end, request.connection.id, frame))
        state.answers.unsaved += 1
    else:
        state.reply_when_stored(request.connection.id, end, frame)


def _send_plain(
    state: BrokerState, request: Request, header: SendMessageHeader, properties: bytes
) -> bool:
    """Store a message without special requests; return False, and do nothing, for any other one.

    Most sends are plain. Every special case is excluded here as cheaply as possible.
    """
    queue = header.topic, header.queue_id
    lane = state.topics.plain_lanes.get(queue) or plain_lane(state, *queue)
    command = request.command
    body, sys_flag, own = command.body, header.sys_flag, state.broker_properties
    if (
        lane is None
        or len(body) > state.config.message_size_max
        or not is_plain(state, sys_flag, properties)
    ):
        return False
    place = state.store.appender.append_fields(
        lane,
        body,
        properties + own,
        header.flag,
        sys_flag,
        header.born_timestamp,
        request.connection.host,
        header.reconsume_times or 0,
        0,
        request.now_ms,
    )
    if not command.flag & ONE_WAY_FLAG:
        frame = state.send_reply.encode(command, lane.queue_id, place)
        state.answers.when_stored(request.connection.id, place.end, frame)
    return True


def is_plain(state: BrokerState, sys_flag: int, properties: bytes) -> bool:
    """Whether the broker decides nothing about a message with these properties."""
    return not (
        sys_flag & TRANSACTION_MASK
        or properties.find(_UNIQ_KEY) < 0
        or properties[-1] != _END_CODE
        or _named_here(_END + properties)
        or len(properties) + len(state.broker_properties) + _OWN_SIZE > PROPERTIES_SIZE_MAX
    )


def plain_lane(state: BrokerState, name: str, queue_id: int) -> Lane | None:
    """Return, and cache, the lane of a queue that accepts every plain message; else None."""
    topic = state.topics.get(name)
    if (
        topic is None
        or name in state.new_topics
        or not 0 <= queue_id < topic.write_queue_nums
        or name[0] == "%"
        or is_send_forbidden(name)
        or state.config.check_message_type
    ):
        return None
    lane = state.topics.plain_lanes[name, queue_id] = state.store.appender.lane(name, queue_id)
    return lane


def _check(
    state: BrokerState,
    request: Request,
    header: SendMessageHeader,
    topic: TopicConfig,
    properties: bytes,
) -> None:
    """Refuse a message that cannot be stored, in Apache's words."""
    config = state.config
    queue_id = header.queue_id
    if (
        queue_id >= topic.write_queue_nums
        and queue_id >= topic.queue_count
        and topic.topic_name == header.topic
    ):
        raise no_such_queue(queue_id, topic, request.connection.address)
    body = request.command.body
    properties_size = len(properties) + _OWN_SIZE + len(state.broker_properties)
    if len(body) > config.message_size_max or properties_size > PROPERTIES_SIZE_MAX:
        raise too_large(config.message_size_max)
    if header.sys_flag & TRANSACTION_MASK and _PREPARED not in properties:
        raise half_refused(config.broker_ip)  # Apache stores it, but no consumer can ever see it
    if config.check_message_type:
        check_message_type(topic, decode_properties(properties))


def _check_batch(state: BrokerState, header: SendMessageHeader, body: bytes) -> None:
    if header.sys_flag & TRANSACTION_MASK:
        raise too_large(state.config.message_size_max)  # Apache's words for this case
    if is_retry_topic(header.topic):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {header.topic}",
        )
    if not body:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the batch contains no message")


def _message(
    state: BrokerState, request: Request, header: SendMessageHeader, topic: TopicConfig
) -> StoredMessage:
    queue_id = header.queue_id
    if topic.topic_name != header.topic:
        queue_id = 0  # the dead-letter topic has one queue
    elif queue_id < 0:
        queue_id = any_queue(state, topic)
    return StoredMessage(
        topic=topic.topic_name,
        queue_id=queue_id,
        body=request.command.body,
        properties=b"",
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_timestamp,
        born_host=request.connection.host,
        reconsume_times=header.reconsume_times or 0,
    )


def any_queue(state: BrokerState, topic: TopicConfig) -> int:
    """Return a queue for a message that names none.

    Raises:
        RequestRefused: when the topic has no queue to write to.
    """
    if not topic.write_queue_nums:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic_name}] has no queue to write to"
        )
    return state.store.log.end % topic.write_queue_nums


def _append_one(
    state: BrokerState, message: StoredMessage, properties: bytes, now_ms: int
) -> AppendResult:
    properties = _identified(properties, state.new_message_ids(now_ms))
    if message.topic[0] == "%" or _named_here(_END + properties):
        return _append_rewritten(state, message, properties, now_ms)
    message.properties = properties + state.broker_properties
    return state.append(message, now_ms)


def _send_half(
    state: BrokerState,
    request: Request,
    topic: TopicConfig,
    message: StoredMessage,
    properties: bytes,
) -> bool:
    """Store and answer a half message; return False, and store nothing, for any other message."""
    now_ms = request.now_ms
    identified = _identified(properties, state.new_message_ids(now_ms))
    named = decode_properties(identified + state.broker_properties)
    if not is_half(named, message.reconsume_times):
        message.sys_flag &= ~TRANSACTION_MASK
        return False
    place = append_half(state, message, named, now_ms)
    if not request.command.is_oneway:
        frame = state.send_reply.encode_half(
            request.command, message.queue_id, place, named[UNIQ_KEY]
        )
        _reply(state, request, topic, place.end, frame)
    return True


def _identified(properties: bytes, new_ids: Iterator[bytes]) -> bytes:
    """Return the properties with a separator at the end and with a message id.

    Every retry and resend of a message has the id that it gets here. The broker makes one if the
    producer sent none (Apache RocketMQ `SendMessageProcessor`).
    """
    if properties and not properties.endswith(_END):
        properties += _END
    if _UNIQ_KEY not in properties:
        properties += _UNIQ_KEY + next(new_ids) + _END
    return properties


def _delay_level(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"property {DELAY}={text}: a delay level is a whole number") from error


def _append_rewritten(
    state: BrokerState, message: StoredMessage, stored_properties: bytes, now_ms: int
) -> AppendResult:
    """Store a message with properties that the broker decides about."""
    properties = decode_properties(stored_properties + state.broker_properties)
    level = _delay_level(properties.get(DELAY, "0"))
    is_dead = message.topic == dead_letter_topic(message.topic.partition("%DLQ%")[2])
    if is_dead:
        properties.pop(DELAY, None)
    if level > 0 and not is_dead:
        level = state.schedule.level(level)
        properties = {name: properties[name] for name in properties if name not in TIMER_WISHES}
        properties[DELAY] = str(level)
        message, properties = delayed(message, level, properties)
    elif is_timed(properties):
        put_into_wheel(state, message, properties, now_ms)
    message.properties = encode_properties(properties)
    return state.append(message, now_ms)


def _append_batch(
    state: BrokerState, like: StoredMessage, body: bytes, now_ms: int
) -> tuple[AppendResult, Sequence[int]]:
    """Store the messages of a batch; the whole batch is decoded before anything is stored.

    Raises:
        RequestRefused: when it has so many tiny messages that making the records takes too long.
    """
    alike = decode_alike(body)
    if alike is not None:
        _check_growth(state, like, len(body), len(alike.keys))
        placed = append_alike(state, like, alike, now_ms)
        if placed is not None:
            return placed
    flags, bodies, properties = decode_columns(body)
    _check_growth(state, like, len(body), len(flags))
    if may_have_pop_properties(b"".join(properties)):
        properties = list(map(without_pop_properties, properties))
    has_ids = all(map(contains, properties, repeat(_UNIQ_KEY)))
    if not (has_ids and all(map(bytes.endswith, properties, repeat(_END)))):
        new_ids = state.new_message_ids(now_ms)
        properties = [_identified(own, new_ids) for own in properties]
    return state.store.appender.append_batch(like, flags, bodies, properties, now_ms)


def _check_growth(state: BrokerState, like: StoredMessage, size: int, count: int) -> None:
    size_max = state.config.message_size_max
    if size + count * (HOSTLESS_SIZE + len(like.topic)) > _BATCH_GROWTH_MAX * size_max:
        raise too_large(size_max)
