"""Sends: a message comes in, gets its place, and is answered when it is stored.

Source: Apache RocketMQ `SendMessageProcessor`, `AbstractSendMessageProcessor`.
"""

from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.delivery.schedule import delayed
from reliable_mq.broker_core.names import (
    RETRY_PREFIX,
    is_retry_topic,
    is_send_forbidden,
    topic_fault,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.message_store import Place, StoredMessage
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.batch_body import decode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.headers import SendMessageHeader, SendMessageHeaderV2
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    TAGS,
    TRACE_ON,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_properties,
)


class _Refusal(NamedTuple):
    code: ResponseCode
    remark: str


def send_message(state: BrokerState, request: Request) -> Command | None:
    """SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    command = request.command
    is_v1 = command.code == RequestCode.SEND_MESSAGE
    header_type = SendMessageHeader if is_v1 else SendMessageHeaderV2
    header = header_type.decode(command.ext_fields)
    topic = _topic_for(state, header, request.now_ms)
    if isinstance(topic, _Refusal):
        return reply(command, topic.code, topic.remark)
    refusal = _refusal(state, header, topic, command.body)
    if refusal:
        return reply(command, refusal.code, refusal.remark)
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = request.now_ms % topic.write_queue_nums
    if header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
        places = _append_batch(state, request, header, queue_id)
    else:
        places = [_append_one(state, request, header, queue_id)]
    ids = ",".join(
        encode_offset_message_id(state.host[:-4], state.config.listen_port, p.commit_log_offset)
        for p in places
    )
    ext = {
        "msgId": ids,
        "queueId": str(queue_id),
        "queueOffset": str(places[0].queue_offset),
        MSG_REGION: state.config.region_id,
        TRACE_ON: "true" if state.config.trace_on else "false",
    }
    if not command.is_oneway:
        frame = encode_command(reply(command, ext=ext))
        state.reply_when_stored(request.connection.id, places[-1].end, frame)
    return None


def _topic_for(
    state: BrokerState, header: SendMessageHeader, now_ms: int
) -> TopicConfig | _Refusal:
    topic = state.topics.get(header.topic)
    if topic is not None and not is_send_forbidden(header.topic):
        return topic
    fault = topic_fault(header.topic)
    if fault:
        return _Refusal(ResponseCode.INVALID_PARAMETER, fault)
    if is_send_forbidden(header.topic):
        return _Refusal(
            ResponseCode.NO_PERMISSION,
            f"Sending message to topic[{header.topic}] is forbidden.",
        )
    topic = state.topics.create_from_default(
        header.topic, header.default_topic, header.default_topic_queue_nums, now_ms
    )
    if topic is not None:
        state.topics_changed()
        return topic
    if is_retry_topic(header.topic):
        return state.ensure_retry_topic(header.topic.removeprefix(RETRY_PREFIX), 1, now_ms)
    return _Refusal(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
    )


def _refusal(
    state: BrokerState, header: SendMessageHeader, topic: TopicConfig, body: bytes
) -> _Refusal | None:
    """Return why a message is not taken, in Apache's words; None when it is."""
    if header.queue_id >= topic.queue_count:
        return _Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{header.queue_id}] is illegal, {topic} Producer: ",
        )
    properties = header.properties or ""
    if len(body) > state.config.message_size_max or len(properties.encode()) > PROPERTIES_SIZE_MAX:
        return _Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {state.config.message_size_max}B, "
            f"msg properties length limit {PROPERTIES_SIZE_MAX}B.",
        )
    if f"{TRANSACTION_PREPARED}\x01true" in properties:
        return _Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.config.broker_ip}] sending transaction message is forbidden",
        )
    return None


def _append_one(
    state: BrokerState, request: Request, header: SendMessageHeader, queue_id: int
) -> Place:
    properties = decode_properties((header.properties or "").encode())
    properties[MSG_REGION] = state.config.region_id
    properties[TRACE_ON] = "true" if state.config.trace_on else "false"
    properties[CLUSTER] = state.config.broker_cluster_name
    message = _message(request, header, queue_id, request.command.body)
    message.tags_code = tags_code(properties.get(TAGS, ""))
    level = int(properties.get(DELAY, "0") or "0")
    if level > 0:
        level = state.schedule.level(level)
        properties[DELAY] = str(level)
        due_ms = request.now_ms + state.schedule.delays_ms[level]
        message, properties = delayed(message, level, properties, due_ms)
    message.properties = encode_properties(properties)
    return state.append(message, request.now_ms)


def _append_batch(
    state: BrokerState, request: Request, header: SendMessageHeader, queue_id: int
) -> list[Place]:
    template = _message(request, header, queue_id, b"")
    return [
        state.append(
            msgspec.structs.replace(
                template,
                body=item.body,
                flag=item.flag,
                properties=item.properties,
                tags_code=tags_code(decode_properties(item.properties).get(TAGS, "")),
            ),
            request.now_ms,
        )
        for item in decode_batch(request.command.body)
    ]


def _message(
    request: Request, header: SendMessageHeader, queue_id: int, body: bytes
) -> StoredMessage:
    return StoredMessage(
        topic=header.topic,
        queue_id=queue_id,
        body=body,
        properties=b"",
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_timestamp,
        born_host=request.connection.host,
        reconsume_times=header.reconsume_times or 0,
    )
