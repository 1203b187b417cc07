"""Check-back: ask a producer for the state of a transaction that was not settled in time.

Every `transactionCheckInterval` a round looks at the pending half messages, oldest first, until one
is too young. A checked half message is stored again at the end of its queue, with its check count.
After `transactionCheckMax` checks it moves to TRANS_CHECK_MAX_TIME_TOPIC, for people to inspect.
Receives the state and the time. Returns records, and CHECK_TRANSACTION_STATE for one producer.
Source: Apache RocketMQ `TransactionalMessageServiceImpl.check`,
`AbstractTransactionalMessageCheckListener`, `DefaultTransactionalMessageCheckListener`.
"""

from functools import partial

import msgspec

from reliable_mq.access.policies import Action
from reliable_mq.access.resources import Resource, topic_resource
from reliable_mq.broker_core.clients import RegisteredMember
from reliable_mq.broker_core.names import HALF_TOPIC
from reliable_mq.broker_core.needed_topics import ensure_given_up_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.errors import MessageRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.message_facts import facts_in
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.headers import CheckTransactionHeader
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import (
    CHECK_IMMUNITY_SECONDS,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_FIRST_OFFSET,
    UNIQ_KEY,
    encode_properties,
)
from reliable_mq.wire.record import Record
from reliable_mq.wire.record_encode import encode_record

log = limited_log(__name__)

CHECK_NOTES_SIZE = 96
"""Bytes that check-backs may add to a half's properties: the check count and the first offset."""

# Limit of one tick, so that many pending half messages do not block the event loop.
_CHECKS_MAX = 200


class HalfCheck:
    """Runs the rounds. Between rounds it does nothing."""

    def __init__(self) -> None:
        self._round_end = -1  # the round checks halves before this queue offset; -1: no round

    def begin(self, state: BrokerState) -> None:
        """Begin a round, unless one is running."""
        if self._round_end < 0:
            queue = state.store.queue(HALF_TOPIC, 0)
            self._round_end = queue.end if queue else 0

    @property
    def is_running(self) -> bool:
        """Whether a round is running."""
        return self._round_end >= 0

    def run_once(self, state: BrokerState, now_ms: int) -> int:
        """Continue the round; return how many halves were stored again or given up."""
        count = 0
        for offset, log_offset in state.halves.oldest(_CHECKS_MAX):
            if offset >= self._round_end:
                break
            half = state.store.read_record(log_offset)
            if half is None:  # the log begins after it, or its record is damaged
                state.halves.drop(offset)
            elif not _check_safely(state, offset, half, now_ms):
                self._end_round(state)
                return count
            count += 1
        if all(offset >= self._round_end for offset, _ in state.halves.oldest(1)):
            self._end_round(state)
        return count

    def _end_round(self, state: BrokerState) -> None:
        self._round_end = -1
        state.record_settled()
        state.halves.save_when_stored(state.store.log.end)
        state.halves.stored(state.store.log.durable, state.offsets)


def _check_safely(state: BrokerState, offset: int, half: Record, now_ms: int) -> bool:
    """`_check`, but give up a half that cannot be stored again, so that the round continues."""
    try:
        return _check(state, offset, half, now_ms)
    except MessageRefused as error:
        broker_events.HALF_GIVEN_UP.log(
            log, **facts_in(half.property_map()), log_offset=half.commit_log_offset, error=error
        )
    try:
        _give_up(state, offset, half, now_ms)
    except MessageRefused as error:
        broker_events.HALF_NOT_KEPT.log(log, **facts_in(half.property_map()), error=error)
        state.halves.drop(offset)
        state.count_half(half.property_map(), -1, now_ms)
    return True


def _check(state: BrokerState, offset: int, half: Record, now_ms: int) -> bool:
    """Check a pending half; return False if it is too young, and so are all later ones."""
    config = state.config
    properties = half.property_map()
    checks = _number(properties.get(TRANSACTION_CHECK_TIMES), 0)
    age_ms = now_ms - half.born_time_ms
    is_over = state.retention.is_over(half.born_time_ms, now_ms)
    if checks >= config.transaction_check_max or is_over:
        _give_up(state, offset, half, now_ms)
        return True
    # Apache also counts when it only stores the half again because of its immunity time.
    properties[TRANSACTION_CHECK_TIMES] = str(checks + 1)
    immunity = properties.get(CHECK_IMMUNITY_SECONDS)
    if immunity is None:
        if 0 <= age_ms <= config.transaction_timeout_ms:
            return False
    else:
        seconds = _number(immunity, -1)
        immunity_ms = config.transaction_timeout_ms if seconds == -1 else seconds * 1000
        if age_ms <= immunity_ms:
            properties.setdefault(TRANSACTION_FIRST_OFFSET, str(offset))
            _put_back(state, offset, half, properties, now_ms)
            return True
    place = _put_back(state, offset, half, properties, now_ms)
    try:
        _ask(state, half, properties, place)
    except (MessageRefused, ValueError) as error:  # its copy is pending anyway
        broker_events.HALF_NOT_CHECKED.log(
            log, **facts_in(properties), log_offset=place.commit_log_offset, error=error
        )
    return True


def _number(text: str | None, missing: int) -> int:
    """Return a property's number; -1 if the text is not a number, as Apache does."""
    if text is None:
        return missing
    try:
        return int(text)
    except ValueError:
        return -1


def _put_back(
    state: BrokerState, offset: int, half: Record, properties: dict[str, str], now_ms: int
) -> AppendResult:
    """Store a half again at the end of its queue. As in Apache, the copy has no flag and no
    reconsume times.
    """
    copy = StoredMessage(
        topic=HALF_TOPIC,
        queue_id=half.queue_id,
        body=half.body,
        properties=_noted(half, properties),
        flag=0,
        sys_flag=half.sys_flag,
        born_time_ms=half.born_time_ms,
        born_host=half.born_host,
    )
    place = state.append(copy, now_ms)
    state.halves.put_back(offset, half, place)
    return place


def _noted(half: Record, properties: dict[str, str]) -> bytes:
    """Return a half's properties with the check-back notes; without them if there is no room.

    This broker accepts no such half, but Apache's does. It is checked, and given up by its age.
    """
    try:
        return encode_properties(properties)
    except MessageRefused:
        return half.properties


def _give_up(state: BrokerState, offset: int, half: Record, now_ms: int) -> None:
    given_up = StoredMessage(
        topic=ensure_given_up_topic(state, now_ms).topic_name,
        queue_id=0,
        body=half.body,
        properties=half.properties,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_time_ms=half.born_time_ms,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
    )
    place = state.append(given_up, now_ms)
    state.halves.give_up(offset, half, place)
    state.count_half(half.property_map(), -1, now_ms)


def _ask(state: BrokerState, half: Record, properties: dict[str, str], place: AppendResult) -> None:
    """Send a check-back when the copy is stored, because the answer will name the copy.

    It has the message. So with access control, only a producer that may send to the topic gets it:
    everybody may claim to be of any producer group.
    """
    may = partial(_may_send, state, topic_resource(properties.get(REAL_TOPIC, "")))
    producer = state.clients.next_producer(properties.get(PRODUCER_GROUP, ""), may)
    if producer is None:
        return
    message_id = properties.get(UNIQ_KEY)
    ip, port = state.host[:-4], int.from_bytes(state.host[-4:])
    header = CheckTransactionHeader(
        topic=HALF_TOPIC,
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.commit_log_offset,
        msg_id=message_id,
        transaction_id=message_id,
        offset_msg_id=encode_offset_message_id(ip, port, place.commit_log_offset),
        broker_name=state.config.broker_name,
    )
    asked = msgspec.structs.replace(
        half,
        topic=properties.get(REAL_TOPIC, ""),
        properties=_noted(half, properties),
        queue_id=int(properties.get(REAL_QUEUE_ID, "0")),
        queue_offset=place.queue_offset,
        commit_log_offset=place.commit_log_offset,
    )
    body = encode_record(asked)
    question = request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)
    state.reply_when_stored(producer, place.end, encode_command(question))


def _may_send(state: BrokerState, topic: Resource, member: RegisteredMember) -> bool:
    guard = state.guard
    return guard is None or guard.may(member.user, topic, (Action.PUB,), member.address)
