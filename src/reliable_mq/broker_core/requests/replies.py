"""Request and reply between two clients: the broker forwards the reply to the requester.

The requester is a producer. The request's properties contain its client id; the reply's properties
contain it, too. The broker pushes the reply over the requester's connection, and stores it in
`<cluster>_REPLY_TOPIC` unless `storeReplyMessageEnable=false`. Then it answers the responder.
Source: Apache RocketMQ `ReplyMessageProcessor`.
"""

from functools import partial

from reliable_mq.broker_core.requests.refusal import no_such_queue, too_large
from reliable_mq.broker_core.requests.send import any_queue
from reliable_mq.broker_core.requests.topic_of_send import topic_for
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import MessageRefused, StoreError
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.message_facts import facts_in
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.headers import PushReplyHeader, SendMessageHeader, SendMessageHeaderV2
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.popped_record import without_pop_properties
from reliable_mq.wire.properties import (
    MSG_REGION,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TRACE_ON,
    decode_properties,
    encode_properties,
)
from reliable_mq.wire.record import TRANSACTION_MASK

log = limited_log(__name__)


def send_reply_message(state: BrokerState, asked: Request) -> Command | None:
    """SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2. The answer waits for the requester's answer."""
    command = asked.command
    is_v1 = command.code == RequestCode.SEND_REPLY_MESSAGE
    header = (SendMessageHeader if is_v1 else SendMessageHeaderV2).decode(command.ext_fields)
    if state.quotas.limit_sends:
        known = header.topic if header.topic in state.topics.by_name else ""
        state.quotas.take_send(known, asked.user, len(command.body), asked.now_ms)
    properties = without_pop_properties((header.properties or "").encode())
    topic = topic_for(state, header, asked)
    if header.queue_id >= topic.queue_count:
        raise no_such_queue(header.queue_id, topic, asked.connection.address)
    if len(command.body) > state.config.message_size_max or len(properties) > PROPERTIES_SIZE_MAX:
        raise too_large(state.config.message_size_max)
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = any_queue(state, topic)
    message = StoredMessage(
        topic=topic.topic_name,
        queue_id=queue_id,
        body=command.body,
        properties=properties,
        flag=header.flag,
        sys_flag=header.sys_flag & ~TRANSACTION_MASK,
        born_time_ms=header.born_timestamp,
        born_host=asked.connection.host,
        reconsume_times=header.reconsume_times or 0,
    )
    named = decode_properties(properties)
    client_id = named.get(REPLY_TO_CLIENT)
    asker = state.clients.find_producer(client_id) if client_id else None
    if asker is None:
        fault = f"reply message properties[{REPLY_TO_CLIENT}] is null"
        if client_id:
            fault = f"push reply message fail, channel of <{client_id}> not found."
        _finish(state, asked, message, fault, asked.now_ms)
        return None
    named[PUSH_REPLY_TIME] = str(asked.now_ms)
    pushed = _push(state, asked, header, encode_properties(named).decode())
    answered = partial(_answered, state, asked, message, str(client_id))
    state.reply(asker, state.calls.begin(asker, pushed, asked.now_ms, answered))
    return None


def _push(
    state: BrokerState, asked: Request, header: SendMessageHeader, properties: str
) -> Command:
    """Return the command that brings the reply to the requester."""
    config = state.config
    pushed = PushReplyHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=properties,
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
        born_host=asked.connection.address,
        store_host=config.address,
        store_timestamp=asked.now_ms,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return request(code, pushed.to_ext(), asked.command.body)


def _answered(
    state: BrokerState,
    asked: Request,
    message: StoredMessage,
    client_id: str,
    answer: Command | None,
) -> None:
    is_taken = answer is not None and answer.code == ResponseCode.SUCCESS
    fault = None if is_taken else f"push reply message to {client_id}fail."
    _finish(state, asked, message, fault, asked.now_ms)


def _finish(
    state: BrokerState, asked: Request, message: StoredMessage, fault: str | None, now_ms: int
) -> None:
    """Store the reply, delivered or not, and answer the responder."""
    config = state.config
    ext = {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}
    code = ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR
    queue_id = str(message.queue_id)
    place = _keep(state, message, now_ms)
    if place is None:
        if fault is None:
            ext |= {"msgId": "0", "queueId": queue_id, "queueOffset": "0"}
        frame = encode_answer(reply(asked.command, code, fault, ext))
        if not asked.command.is_oneway:
            state.reply(asked.connection.id, frame)
        return
    ip, port = state.host[:-4], int.from_bytes(state.host[-4:])
    ext |= {
        "msgId": encode_offset_message_id(ip, port, place.commit_log_offset),
        "queueId": queue_id,
        "queueOffset": str(place.queue_offset),
    }
    if not asked.command.is_oneway:
        frame = encode_answer(reply(asked.command, code, fault, ext))
        state.reply_when_stored(asked.connection.id, place.end, frame)


def _keep(state: BrokerState, message: StoredMessage, now_ms: int) -> AppendResult | None:
    """Store a reply, unless this is disabled or not possible.

    It never raises for these reasons: the responder must get an answer in any case. The function
    runs in the requester's answer, at the end of its connection, or in a tick; no caller there
    could report an error.
    """
    if not state.config.store_reply_message or state.pressure.is_disk_full:
        return None
    try:
        return state.append(message, now_ms)
    except MessageRefused as error:
        broker_events.REPLY_NOT_STORED.log(
            log, **facts_in(decode_properties(message.properties)), topic=message.topic, error=error
        )
    except StoreError as error:
        if not is_out_of_room(error):
            raise
        state.pressure.note_no_file(now_ms)
    return None
