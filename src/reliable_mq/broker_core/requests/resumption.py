"""Resumption of a half message that was given up, on request of a person.

Apache's broker stores any named message as a half. This broker accepts only a half that is not
settled. If the half is still pending, its copy replaces it, so that no transaction exists twice.
Source: Apache RocketMQ `AdminBrokerProcessor.resumeCheckHalfMessage`.
"""

from reliable_mq.access.policies import Action
from reliable_mq.broker_core.names import GIVEN_UP_TOPIC, HALF_TOPIC
from reliable_mq.broker_core.requests.hidden import refuse_hidden
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.errors import RecordError
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import ResumeHalfHeader
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import TRANSACTION_CHECK_TIMES, encode_properties
from reliable_mq.wire.record import Record


def resume_check_half_message(state: BrokerState, request: Request) -> Command | None:
    """RESUME_CHECK_HALF_MESSAGE: check-backs of the half begin again, with all attempts."""
    header = ResumeHalfHeader.decode(request.command.ext_fields)
    half = _half(state, header.msg_id)
    if request.command.ext_fields.get("topic", "").strip():  # else the sender may change everything
        refuse_hidden(state, request, half, Action.UPDATE)
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
    copy = StoredMessage(
        topic=HALF_TOPIC,
        queue_id=0,
        body=half.body,
        properties=encode_properties({**half.property_map(), TRANSACTION_CHECK_TIMES: "0"}),
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_time_ms=half.born_time_ms,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
    )
    place = state.append(copy, request.now_ms)
    pending = len(state.halves)
    state.halves.resume(half, place)
    state.count_half(half.property_map(), len(state.halves) - pending, request.now_ms)
    state.settled(request.connection.id, None, request.now_ms)
    if not request.command.is_oneway:
        frame = encode_answer(reply(request.command))
        state.reply_when_stored(request.connection.id, place.end, frame)
    return None


def _half(state: BrokerState, message_id: str) -> Record:
    """Return the half, or the given-up half, with this offset message id."""
    try:
        offset = decode_offset_message_id(message_id).commit_log_offset
    except RecordError:
        offset = -1
    half = state.store.read_record(offset) if offset >= 0 else None
    if half is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"Exception was thrown when putting message back to {HALF_TOPIC}.",
        )
    if half.topic not in (HALF_TOPIC, GIVEN_UP_TOPIC) or not state.halves.can_be_resumed(half):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "this is not a half message of an open transaction"
        )
    return half
