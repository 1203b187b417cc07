"""Send-back: a consumer failed to handle a message; retry it later, or move it to dead letters.

Source: Apache RocketMQ `AbstractSendMessageProcessor.consumerSendMsgBack`.
"""

from reliable_mq.access.policies import Action
from reliable_mq.broker_core.delivery.schedule import delayed
from reliable_mq.broker_core.dispatch import is_queued
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.needed_topics import ensure_dead_letter_topic, ensure_retry_topic
from reliable_mq.broker_core.requests.hidden import refuse_hidden
from reliable_mq.broker_core.requests.refusal import RequestRefused, no_such_group
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.topics import WRITE
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import SendBackHeader
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    encode_properties,
)
from reliable_mq.wire.record import Record

_FIRST_RETRY_LEVEL = 3  # 10 s with the default delays
_LIMIT_VERSION = 121  # MQVersion.V3_4_9: since this version the limit that clients send counts

_TIMES_MAX = 2**31 - 1  # the largest value of the field in a record


def consumer_send_msg_back(state: BrokerState, request: Request) -> Command | None:
    """CONSUMER_SEND_MSG_BACK."""
    command = request.command
    header = SendBackHeader.decode(command.ext_fields)
    group = state.find_group(header.group, request.now_ms, request.user)
    if group is None:
        raise no_such_group(header.group)
    if group.retry_queue_nums <= 0:
        return reply(command)
    record = state.store.read_record(header.offset) if header.offset >= 0 else None
    if record is None or not is_queued(record.sys_flag):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
        )
    refuse_hidden(state, request, record, Action.SUB)
    if state.quotas.limit_sends:  # the message is stored once more
        state.quotas.take_send("", request.user, len(record.body), request.now_ms)
    if state.pressure.is_disk_full:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE: the broker's disk is full"
        )
    retry_topic = ensure_retry_topic(state, header.group, group.retry_queue_nums, request.now_ms)
    if not retry_topic.perm & WRITE:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{retry_topic.topic_name}] sending message is forbidden",
        )
    if _is_dead(command, header, group, record):
        dead = ensure_dead_letter_topic(state, header.group, request.now_ms)
        topic, queue_id, level = dead.topic_name, 0, 0
    else:
        topic, queue_id = retry_topic.topic_name, request.now_ms % group.retry_queue_nums
        level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
    message = _again(state, record, topic, queue_id, level)
    place = state.append(message, request.now_ms)
    origin = record.property_map().get(RETRY_TOPIC, record.topic)
    state.statistics.sent_back(header.group, origin, request.now_ms)
    if not command.is_oneway:
        state.reply_when_stored(request.connection.id, place.end, encode_answer(reply(command)))
    return None


def _is_dead(command: Command, header: SendBackHeader, group: GroupConfig, record: Record) -> bool:
    attempts_max = group.retry_max_times
    if command.version >= _LIMIT_VERSION and header.max_reconsume_times is not None:
        attempts_max = header.max_reconsume_times
    return header.delay_level < 0 or record.reconsume_times >= attempts_max


def _again(
    state: BrokerState, record: Record, topic: str, queue_id: int, level: int
) -> StoredMessage:
    """Return the message for its next attempt; with a `level` above 0 it is delayed."""
    properties = record.property_map()
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties[WAIT] = "false"
    ip, port = record.store_host[:-4], int.from_bytes(record.store_host[-4:])
    properties.setdefault(
        ORIGIN_MESSAGE_ID, encode_offset_message_id(ip, port, record.commit_log_offset)
    )
    level = state.schedule.level(level)
    properties[DELAY] = str(level)
    message = StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=b"",
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        reconsume_times=min(record.reconsume_times + 1, _TIMES_MAX),
    )
    if level > 0:
        message, properties = delayed(message, level, properties)
    message.properties = encode_properties(properties)
    return message
