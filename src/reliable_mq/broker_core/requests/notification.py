"""Requests that wait for a message without taking it, and what a group would get next.

Source: Apache RocketMQ `NotificationProcessor`, `PollingInfoProcessor`.
"""

import msgspec

from reliable_mq.broker_core.delivery.waiting_pops import WaitingPop, poll_end_ms
from reliable_mq.broker_core.names import pop_retry_topic
from reliable_mq.broker_core.requests.pop_checks import (
    readable_topic,
    refuse_group,
    refuse_long_attempt,
)
from reliable_mq.broker_core.requests.pop_position import position_now
from reliable_mq.broker_core.requests.pop_waiting import waiting_pop
from reliable_mq.broker_core.requests.refusal import RequestRefused, of_unverified
from reliable_mq.broker_core.requests.revoked import refuse_revoked
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.pop_headers import NotificationHeader, PollingInfoHeader

_COST = 30  # microseconds, and as many for each queue that is looked at


def notification(state: BrokerState, request: Request) -> Command | None:
    """NOTIFICATION: whether the group has a message to pop; waits until it has."""
    command, connection = request.command, request.connection
    header = NotificationHeader.decode(command.ext_fields)
    if not header.born_time:
        header = msgspec.structs.replace(header, born_time=request.now_ms)
    state.popped.now_ms = request.now_ms
    refuse_long_attempt(header.attempt_id)
    readable_topic(state, header.topic, header.queue_id, connection.address)
    refuse_group(state, header.consumer_group, request)
    if _has_message(state, header, request.now_ms):
        return _answer(command, has_message=True)
    end_ms = poll_end_ms(header.born_time, header.poll_time, request.now_ms)
    waiting = waiting_pop(request, header, end_ms)
    if header.poll_time <= 0 or waiting.deadline_ms <= request.now_ms:
        return _answer(command, has_message=False)
    if not state.notifications.has_room(waiting):
        return _answer(command, has_message=False, is_full=True)
    if not command.is_oneway:
        state.notifications.hold(waiting)
    return None


def answer_notification(state: BrokerState, waiting: WaitingPop, now_ms: int) -> int:
    """Answer a request that waited, or let it wait on; return the work in microseconds."""
    header: NotificationHeader = waiting.header
    try:
        if state.is_unverified:  # another broker is the master now
            raise of_unverified()
        refuse_revoked(state, waiting.command.code, waiting.user, waiting.address, header)
        readable_topic(state, header.topic, header.queue_id, waiting.address)
        has_message = _has_message(state, header, now_ms)
    except RequestRefused as refused:
        answer = reply(waiting.command, refused.code, refused.remark, refused.ext)
    else:
        if not has_message and now_ms < waiting.deadline_ms:
            state.notifications.hold(waiting)
            return 2 * _COST
        answer = _answer(waiting.command, has_message=has_message)
    state.reply(waiting.connection, encode_answer(answer))
    return 2 * _COST


def _answer(command: Command, *, has_message: bool, is_full: bool = False) -> Command:
    ext = {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
    return reply(command, ext=ext)


def _has_message(state: BrokerState, header: NotificationHeader, now_ms: int) -> bool:
    topic, group = header.topic, header.consumer_group
    names = [topic, *(pop_retry_topic(topic, group, is_v2=is_v2) for is_v2 in (False, True))]
    for name in names:
        config = state.topics.by_name.get(name)
        if config is None:
            continue
        queues = range(config.read_queue_nums)
        if name == topic and header.queue_id >= 0:
            queues = range(header.queue_id, header.queue_id + 1)
        for queue_id in queues:
            queue = state.store.queues.get((name, queue_id))
            if queue is None or queue.end <= position_now(state, group, name, queue_id):
                continue
            if not header.order or not state.orders.blocks(
                topic, group, queue_id, header.attempt_id, 0, now_ms
            ):
                return True
    return False


def polling_info(state: BrokerState, request: Request) -> Command:
    """POLLING_INFO: how many pops of a group wait for a queue."""
    header = PollingInfoHeader.decode(request.command.ext_fields)
    readable_topic(state, header.topic, header.queue_id, request.connection.address)
    refuse_group(state, header.consumer_group, request)
    count = state.pops.count(header.topic, header.consumer_group, header.queue_id)
    return reply(request.command, ext={"pollingNum": str(count)})
