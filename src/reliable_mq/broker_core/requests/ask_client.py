"""Requests of tools that a consumer must answer: the broker forwards them.

Source: Apache RocketMQ `AdminBrokerProcessor.callConsumer`, `Broker2Client`.
"""

from functools import partial

from reliable_mq.access.policies import Action
from reliable_mq.broker_core.clients import RegisteredMember
from reliable_mq.broker_core.delivery.client_calls import TIMEOUT_MS
from reliable_mq.broker_core.requests.hidden import refuse_hidden, refuse_stranger
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.request_signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

_OF_SENDER = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})
_VERSION_MIN = 62  # MQVersion.V3_1_8_SNAPSHOT: older clients do not support these requests


def get_consumer_running_info(state: BrokerState, asked: Request) -> Command | None:
    """GET_CONSUMER_RUNNING_INFO: a consumer's own report about its queues and threads."""
    return _forward(state, asked, dict(asked.command.ext_fields), asked.command.body)


def consume_message_directly(state: BrokerState, asked: Request) -> Command | None:
    """CONSUME_MESSAGE_DIRECTLY: a consumer handles one message at once, outside the queue order."""
    ext = asked.command.ext_fields
    offset = decode_offset_message_id(ext.get("msgId", "")).commit_log_offset
    record = state.store.read_record(offset) if offset >= 0 else None
    if record is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
        )
    refuse_hidden(state, asked, record, Action.SUB)
    member = _member(state, ext.get("consumerGroup", ""), ext.get("clientId", ""))
    if member is not None:
        refuse_stranger(state, member, record)
    if state.quotas.limit_pulls:
        state.quotas.take_pull("", asked.user, asked.now_ms)
        state.quotas.charge_pull("", asked.user, 1, record.size)
    sent = {**ext, "brokerName": state.config.broker_name}
    topic = state.topics.get(ext.get("topic", ""))
    if topic is not None:
        sent["topicSysFlag"] = str(topic.topic_sys_flag)
    group = state.groups.get(ext.get("consumerGroup", ""))
    if group is not None:
        sent["groupSysFlag"] = str(group.group_sys_flag)
    return _forward(state, asked, sent, state.store.log.read(offset, record.size))


def _forward(
    state: BrokerState, asked: Request, ext: dict[str, str], body: bytes
) -> Command | None:
    """Forward the request to the consumer that it names; reply when the consumer has answered.

    The consumer does not get the signature: it could send it again as a request with another code.
    """
    group, client_id = ext.get("consumerGroup", ""), ext.get("clientId", "")
    member = _member(state, group, client_id)
    if member is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
        )
    if member.version < _VERSION_MIN:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please "
            "upgrade it to V3_1_8_SNAPSHOT",
        )
    passed_on = {name: value for name, value in ext.items() if name not in _OF_SENDER}
    passed = request(asked.command.code, passed_on, body)
    answered = partial(_answer, state, asked, group, client_id)
    state.reply(
        member.connection, state.calls.begin(member.connection, passed, asked.now_ms, answered)
    )
    return None


def _member(state: BrokerState, group: str, client_id: str) -> RegisteredMember | None:
    members = state.clients.consumer_group(group)
    known = (*(members.members.values() if members else ()), *state.guests.members_of(group))
    return next((member for member in known if member.client_id == client_id), None)


def _answer(
    state: BrokerState, asked: Request, group: str, client_id: str, answer: Command | None
) -> None:
    if answer is None:
        sent = reply(
            asked.command,
            ResponseCode.CONSUME_MSG_TIMEOUT,
            f"consumer <{group}> <{client_id}> Timeout: no answer within {TIMEOUT_MS} ms",
        )
    else:
        sent = reply(asked.command, answer.code, answer.remark, answer.ext_fields, answer.body)
    if not asked.command.is_oneway:
        state.reply(asked.connection.id, encode_answer(sent))
