"""Recall of a timed message: a second message in the same slot names the first.

Source: Apache RocketMQ `RecallMessageProcessor`.
"""

from reliable_mq.broker_core.delivery.timed_message import delete_key
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.requests.timed import java_long, put_into_wheel
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import RecallMessageHeader
from reliable_mq.wire.properties import (
    BORN_TIMESTAMP,
    MSG_REGION,
    PRODUCER_GROUP,
    TAGS,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
)
from reliable_mq.wire.recall_handle import decode_recall_handle

_TAG = "_RECALL_TAG_"


def recall_message(state: BrokerState, request: Request) -> Command | None:
    """RECALL_MESSAGE."""
    command = request.command
    header = RecallMessageHeader.decode(command.ext_fields)
    ext = {MSG_REGION: state.config.region_id}
    try:
        message, unique_key = _deletion(state, request, header)
    except RequestRefused as refused:
        raise RequestRefused(refused.code, refused.remark, ext) from None
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.", ext)
    place = state.append(message, request.now_ms)
    if not command.is_oneway:
        answer = reply(command, ext={**ext, "msgId": unique_key})
        state.reply_when_stored(request.connection.id, place.end, encode_answer(answer))
    return None


def _deletion(
    state: BrokerState, request: Request, header: RecallMessageHeader
) -> tuple[StoredMessage, str]:
    """Return the message that recalls another one, and the unique key of that other one.

    Raises:
        RequestRefused: when the handle names no message that can be recalled.
    """
    config, now_ms = state.config, request.now_ms
    if not config.recall_messages:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if state.topics.get(header.topic) is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
        )
    handle = decode_recall_handle(header.recall_handle)
    if handle is None:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    if handle.topic != header.topic:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker != config.broker_name:
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available"
        )
    time_ms = java_long(handle.time)
    if time_ms is None or not 0 < time_ms - now_ms < config.timer_seconds_max * 1000:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    key = delete_key(handle.topic, handle.unique_key, with_topic=config.recall_with_topic)
    properties = {
        TAGS: _TAG,
        TIMER_DELETED_KEY: key,
        UNIQ_KEY: handle.unique_key,
        TIMER_DELIVER_MS: handle.time,
        BORN_TIMESTAMP: str(now_ms),
        **({PRODUCER_GROUP: header.producer_group} if header.producer_group else {}),
    }
    message = StoredMessage(
        topic=handle.topic,
        queue_id=0,
        body=b"0",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=request.connection.host,
    )
    try:
        put_into_wheel(state, message, properties, now_ms)
    except RequestRefused:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "recall failed, execute error") from None
    message.properties = encode_properties(properties)
    return message, handle.unique_key
