"""Peeks: show the messages that a group would pop next, without taking them.

Source: Apache RocketMQ `PeekMessageProcessor`.
"""

from reliable_mq.broker_core.delivery.popped import RETRY_EVERY
from reliable_mq.broker_core.names import pop_retry_topic
from reliable_mq.broker_core.requests.pop_checks import readable_topic, refuse_group
from reliable_mq.broker_core.requests.pop_position import position_now
from reliable_mq.broker_core.requests.pull import find
from reliable_mq.broker_core.requests.pull_reading import FOUND
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.pop_headers import PeekMessageHeader

_MESSAGES_MAX = 32


def peek_message(state: BrokerState, request: Request) -> Command:
    """PEEK_MESSAGE: like a pop, but nothing changes, and it never waits."""
    header = PeekMessageHeader.decode(request.command.ext_fields)
    topic = readable_topic(state, header.topic, header.queue_id, request.connection.address)
    refuse_group(state, header.consumer_group, request)
    if state.quotas.limit_pulls:
        state.quotas.take_pull(header.consumer_group, request.user, request.now_ms)
    turn = state.popped.turn_of(header.topic, header.consumer_group)
    queues = [(header.topic, each) for each in range(topic.read_queue_nums)]
    if header.queue_id >= 0:
        queues = [(header.topic, header.queue_id)]
    start = (turn.queues + 1) % len(queues) if queues else 0  # as the next pop would begin
    queues = [*queues[start:], *queues[:start]]
    retries = _retry_queues(state, header)
    is_retry_first = (turn.pops + 1) % RETRY_EVERY == 0
    queues = [*retries, *queues] if is_retry_first else [*queues, *retries]
    bodies: list[bytes] = []
    rest, room, size = 0, min(header.max_msg_nums, _MESSAGES_MAX), state.config.pull_size_max
    for name, queue_id in queues:
        queue = state.store.queues.get((name, queue_id))
        offset = position_now(state, header.consumer_group, name, queue_id)
        rest += max(0, queue.end - offset) if queue is not None else 0
        if queue is None or room <= 0 or size <= 0:
            continue
        pull = PullMessageHeader(
            consumer_group=header.consumer_group,
            topic=name,
            queue_id=queue_id,
            queue_offset=max(offset, queue.first),
            max_msg_nums=room,
            sys_flag=0,
            commit_offset=0,
            suspend_timeout_millis=0,
            max_msg_bytes=size,
        )
        found = find_kept(state, pull)
        bodies += found[0]
        room -= found[1]
        size -= sum(map(len, found[0]))
    if state.quotas.limit_pulls:
        count, group = min(header.max_msg_nums, _MESSAGES_MAX) - room, header.consumer_group
        state.quotas.charge_pull(group, request.user, count, sum(map(len, bodies)))
    ext = {"restNum": str(rest), "popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    if not bodies:
        return reply(request.command, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", ext)
    return reply(request.command, ResponseCode.SUCCESS, FOUND, ext, b"".join(bodies))


def find_kept(state: BrokerState, pull: PullMessageHeader) -> tuple[list[bytes], int]:
    """Return messages of a queue, and their number. A pending reset stays pending."""
    group, topic, queue_id = pull.consumer_group, pull.topic, pull.queue_id
    reset = state.offsets.take_reset(group, topic, queue_id) if state.offsets.resets else None
    found = find(state, pull, None)
    if reset is not None:
        state.offsets.reset(group, topic, queue_id, reset)
    if found.status != FOUND:
        return [], 0
    body = found.body if isinstance(found.body, bytes) else b"".join(found.body.pieces)
    return [body], found.messages


def _retry_queues(state: BrokerState, header: PeekMessageHeader) -> list[tuple[str, int]]:
    found = []
    for is_v2 in (False, True):
        name = pop_retry_topic(header.topic, header.consumer_group, is_v2=is_v2)
        topic = state.topics.by_name.get(name)
        found += [(name, each) for each in range(topic.read_queue_nums if topic else 0)]
    return found
