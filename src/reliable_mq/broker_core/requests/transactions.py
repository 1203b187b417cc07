"""Transactions: a half message is accepted, and its transaction ends once.

Apache's broker stores the message again with each repeated commit. Here the first decision counts;
a repeated one gets the same reply.
Source: Apache RocketMQ `EndTransactionProcessor`, `TransactionalMessageBridge`,
`TransactionalMessageUtil`.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.access.policies import Action
from reliable_mq.broker_core.delivery.half_check import CHECK_NOTES_SIZE
from reliable_mq.broker_core.names import HALF_TOPIC
from reliable_mq.broker_core.requests.hidden import refuse_hidden
from reliable_mq.broker_core.requests.refusal import RequestRefused, too_large
from reliable_mq.broker_core.requests.timed import TIMER_WISHES
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import EndTransactionHeader
from reliable_mq.wire.properties import (
    CHECK_IMMUNITY_SECONDS,
    DELAY,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_FIRST_OFFSET,
    TRANSACTION_ID,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    encode_properties,
)
from reliable_mq.wire.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    Record,
)

_DELAYS = frozenset({DELAY, *TIMER_WISHES})

_DECISIONS = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


def half_refused(broker: str) -> RequestRefused:
    """Return the refusal of half messages by the broker with this IP address."""
    return RequestRefused(
        ResponseCode.NO_PERMISSION,
        f"the broker[{broker}] sending transaction message is forbidden",
    )


def is_half(properties: Mapping[str, str], attempts: int) -> bool:
    """Whether a message with these properties must be stored as a half.

    Clients before 4.6.1 keep the mark when they send a message back for a retry.
    """
    is_marked = properties.get(TRANSACTION_PREPARED, "").lower() == "true"
    return is_marked and not (attempts > 0 and int(properties.get(DELAY, "0")) > 0)


def append_half(
    state: BrokerState, message: StoredMessage, properties: dict[str, str], now_ms: int
) -> AppendResult:
    """Store a message as a half. Its properties must have its id; its real place is added.

    Raises:
        RequestRefused: when the broker accepts no half messages. When the message also has a delay:
            Apache's broker accepts this and loses the real place. When its properties leave no
            room for the notes of check-backs: Apache's broker accepts this and can never check it.
    """
    if state.config.reject_transaction_message:
        raise half_refused(state.config.broker_ip)
    if not _DELAYS.isdisjoint(properties):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, "a transactional message cannot be delayed as well"
        )
    for note in (TRANSACTION_CHECK_TIMES, TRANSACTION_FIRST_OFFSET):
        properties.pop(note, None)  # they belong to another half, if a message is forwarded
    properties[TRANSACTION_ID] = properties[UNIQ_KEY]
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    stored_properties = encode_properties(properties)
    if len(stored_properties) > PROPERTIES_SIZE_MAX - CHECK_NOTES_SIZE:
        raise too_large(state.config.message_size_max)
    half = msgspec.structs.replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=stored_properties,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
    )
    place = state.append(half, now_ms)
    state.halves.add(place)
    state.count_half(properties, 1, now_ms)
    return place


def end_transaction(state: BrokerState, request: Request) -> Command | None:
    """END_TRANSACTION. A request without a decision has no reply, as in Apache."""
    header = EndTransactionHeader.decode(request.command.ext_fields)
    if header.commit_or_rollback not in _DECISIONS:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    if header.commit_or_rollback == TRANSACTION_NONE:
        return None
    half = _half(state, header, request.now_ms)
    refuse_hidden(state, request, half, Action.PUB)
    message = _committed(half)
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
    frame = None if request.command.is_oneway else encode_answer(reply(request.command))
    if state.halves.is_settled(half):
        if frame:
            state.settled_before(request.connection.id, frame)
        return None
    if header.commit_or_rollback == TRANSACTION_COMMIT:
        state.append(message, request.now_ms)  # raises without room; then nothing is settled
    pending = len(state.halves)
    state.halves.settle(half)
    state.count_half(half.property_map(), len(state.halves) - pending, request.now_ms)
    state.settled(request.connection.id, frame, request.now_ms)
    return None


def _half(state: BrokerState, header: EndTransactionHeader, now_ms: int) -> Record:
    """Return the half of the transaction, or refuse in Apache's words."""
    offset = header.commit_log_offset
    half = state.store.read_record(offset) if offset >= 0 else None
    if half is None:
        raise _no_half()
    properties = half.property_map()
    immunity = properties.get(CHECK_IMMUNITY_SECONDS)
    if immunity and not header.from_transaction_check:
        timeout_ms = state.config.transaction_timeout_ms
        immunity_ms = int(immunity) * 1000 if immunity.isdecimal() else 0
        if now_ms - half.born_time_ms > max(immunity_ms, timeout_ms):
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "")  # a check-back will ask
    if properties.get(PRODUCER_GROUP) != header.producer_group:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if half.topic != HALF_TOPIC or REAL_TOPIC not in properties:
        raise _no_half()
    return half


def _no_half() -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


def _committed(half: Record) -> StoredMessage:
    """Return the message for consumers. It keeps its transaction mark, as in Apache."""
    properties = half.property_map()
    topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QUEUE_ID, "0"))
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=encode_properties(properties),
        flag=half.flag,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        born_time_ms=half.born_time_ms,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.commit_log_offset,
    )
