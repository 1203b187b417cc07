"""Pulls: what a queue holds from an offset on, or a wait for it.

Source: Apache RocketMQ `PullMessageProcessor`, `DefaultMessageStore.getMessage`.
"""

from typing import NamedTuple

from reliable_mq.broker_core.delivery.long_poll import WaitingPull
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.limits import PULL_SIZE_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import PullMessageHeader, PullResultHeader
from reliable_mq.wire.java_hash import tags_code

COMMIT_OFFSET = 0x1
SUSPEND = 0x2
SUBSCRIPTION = 0x4

_SCAN_MAX = 800  # units looked at for one filtered pull


class _Found(NamedTuple):
    code: ResponseCode
    status: str
    next_offset: int
    body: bytes


def pull_message(state: BrokerState, request: Request) -> Command | None:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""
    command = request.command
    header = PullMessageHeader.decode(command.ext_fields)
    group = state.groups.find(header.consumer_group, request.now_ms)
    if group is None:
        return reply(
            command,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist, ",
        )
    if not group.consume_enable:
        return reply(
            command,
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {header.consumer_group}",
        )
    topic = state.topics.get(header.topic)
    if topic is None:
        return reply(
            command,
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{header.topic}] not exist, apply first please!",
        )
    if not 0 <= header.queue_id < topic.read_queue_nums:
        return reply(
            command,
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
            f"consumer:[{request.connection.address}]",
        )
    tags = _wanted_tags(state, header)
    if tags is None:
        return reply(
            command,
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            "the consumer's group info not exist",
        )
    if header.sys_flag & COMMIT_OFFSET:
        state.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
    found = _find(state, header, tags)
    if found.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & SUSPEND:
        _hold(state, request, header, tags)
        return None
    return _answer(state, command, header, found)


def _wanted_tags(state: BrokerState, header: PullMessageHeader) -> frozenset[int] | None:
    """Return the tag hashes the pull wants, empty for all; None when nobody subscribed."""
    if header.sys_flag & SUBSCRIPTION:
        expression = (header.subscription or "*").strip()
        if expression in ("", "*"):
            return frozenset()
        return frozenset(tags_code(tag.strip()) for tag in expression.split("||") if tag.strip())
    group = state.clients.consumer_group(header.consumer_group)
    subscription = group.subscriptions.get(header.topic) if group else None
    if subscription is None:
        return None
    if subscription.sub_string == "*":
        return frozenset()
    return frozenset(subscription.code_set)


def _find(state: BrokerState, header: PullMessageHeader, tags: frozenset[int]) -> _Found:
    queue = state.store.queue(header.topic, header.queue_id)
    offset = header.queue_offset
    if queue is None or queue.end == 0:
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        return _Found(code, "NO_MESSAGE_IN_QUEUE", 0, b"")
    if offset < queue.first:
        return _Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.first, b"")
    if offset == queue.end:
        return _Found(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, b"")
    if offset > queue.end:
        return _Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", queue.end, b"")
    return _read(state, queue, header, tags)


def _read(
    state: BrokerState, queue: ConsumeQueue, header: PullMessageHeader, tags: frozenset[int]
) -> _Found:
    """Read records from the queue; neighbours in the log are read in one piece."""
    count_max = max(1, header.max_msg_nums)
    size_max = min(header.max_msg_bytes or PULL_SIZE_MAX, PULL_SIZE_MAX)
    parts: list[bytes] = []
    next_offset = header.queue_offset
    begin = end = total = count = 0
    for unit in queue.units(next_offset, _SCAN_MAX if tags else count_max):
        if not tags or unit.tags_code in tags:
            if count == count_max or (count and total + unit.size > size_max):
                break
            if unit.commit_log_offset != end:
                if end > begin:
                    parts.append(state.store.log.read(begin, end - begin))
                begin = unit.commit_log_offset
            end = unit.commit_log_offset + unit.size
            total += unit.size
            count += 1
        next_offset += 1
    if not count:
        return _Found(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next_offset, b"")
    parts.append(state.store.log.read(begin, end - begin))
    return _Found(ResponseCode.SUCCESS, "FOUND", next_offset, b"".join(parts))


def _hold(
    state: BrokerState, request: Request, header: PullMessageHeader, tags: frozenset[int]
) -> None:
    config = state.config
    wait_ms = header.suspend_timeout_millis if config.long_polling else config.short_polling_ms
    state.pulls.hold(
        WaitingPull(request.connection.id, request.command, header, request.now_ms + wait_ms, tags)
    )


def answer_waiting(state: BrokerState, pull: WaitingPull) -> Command:
    """Return the answer to a pull that waited; it is not held a second time."""
    return _answer(state, pull.command, pull.header, _find(state, pull.header, pull.tags))


def _answer(
    state: BrokerState, command: Command, header: PullMessageHeader, found: _Found
) -> Command:
    queue = state.store.queue(header.topic, header.queue_id)
    result = PullResultHeader(
        suggest_which_broker_id=0,
        next_begin_offset=found.next_offset,
        min_offset=queue.first if queue else 0,
        max_offset=queue.end if queue else 0,
    )
    return reply(command, found.code, found.status, result.to_ext(), found.body)
