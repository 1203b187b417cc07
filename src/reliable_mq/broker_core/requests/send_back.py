"""Send-back: a consumer could not handle a message; it comes again later, or goes to the dead.

Source: Apache RocketMQ `AbstractSendMessageProcessor.consumerSendMsgBack`.
"""

from reliable_mq.broker_core.delivery.schedule import delayed
from reliable_mq.broker_core.names import dead_letter_topic, retry_topic
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.message_store import StoredMessage
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.headers import SendBackHeader
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TAGS,
    WAIT,
    encode_properties,
)
from reliable_mq.wire.record import Record

_FIRST_RETRY_LEVEL = 3  # 10 s with the default delays


def consumer_send_msg_back(state: BrokerState, request: Request) -> Command | None:
    """CONSUMER_SEND_MSG_BACK."""
    command = request.command
    header = SendBackHeader.decode(command.ext_fields)
    group = state.groups.get(header.group)
    if group is None:
        return reply(
            command,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group} ",
        )
    if group.retry_queue_nums <= 0:
        return reply(command)
    record = state.store.read_record(header.offset)
    if record is None:
        return reply(
            command,
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {header.offset}",
        )
    attempts_max = header.max_reconsume_times
    if attempts_max is None:
        attempts_max = group.retry_max_times
    is_dead = record.reconsume_times >= attempts_max or header.delay_level < 0
    if is_dead:
        state.ensure_dead_letter_topic(header.group, request.now_ms)
        topic, queue_id, level = dead_letter_topic(header.group), 0, 0
    else:
        state.ensure_retry_topic(header.group, group.retry_queue_nums, request.now_ms)
        topic, queue_id = retry_topic(header.group), request.now_ms % group.retry_queue_nums
        level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
    message = _again(state, record, topic, queue_id, level, request.now_ms)
    place = state.append(message, request.now_ms)
    if not command.is_oneway:
        state.reply_when_stored(request.connection.id, place.end, encode_command(reply(command)))
    return None


def _again(
    state: BrokerState, record: Record, topic: str, queue_id: int, level: int, now_ms: int
) -> StoredMessage:
    properties = record.property_map()
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties[WAIT] = "false"
    ip, port = record.store_host[:-4], int.from_bytes(record.store_host[-4:])
    properties.setdefault(
        ORIGIN_MESSAGE_ID, encode_offset_message_id(ip, port, record.commit_log_offset)
    )
    properties.pop(DELAY, None)
    message = StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=b"",
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times + 1,
        tags_code=tags_code(properties.get(TAGS, "")),
    )
    if level > 0:
        level = state.schedule.level(level)
        properties[DELAY] = str(level)
        due_ms = now_ms + state.schedule.delays_ms[level]
        message, properties = delayed(message, level, properties, due_ms)
    message.properties = encode_properties(properties)
    return message
