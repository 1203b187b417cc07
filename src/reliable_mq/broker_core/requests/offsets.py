"""Requests for consumer offsets, and for the bounds of queues.

Source: Apache RocketMQ `ConsumerManageProcessor`, `AdminBrokerProcessor`, `ConsumeQueue`.
"""

import re
from bisect import bisect_left, bisect_right

from reliable_mq.broker_core.requests.refusal import RequestRefused, no_room_for_offsets
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import (
    ConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)

_NUMBER = re.compile(r"[-+]?[0-9]+")
_LAST_MS = 2**63 - 1
_FIRST, _END = 0, 1  # index into the bounds of a queue


def query_consumer_offset(state: BrokerState, request: Request) -> Command:
    """QUERY_CONSUMER_OFFSET.

    A group without an offset starts at the queue's begin if the queue is young and still has its
    first message. Otherwise a group that starts at the last message would miss the first messages
    of a new topic. The begin is 0, or the next offset at the time when the topic was deleted.
    """
    header = ConsumerOffsetHeader.decode(request.command.ext_fields)
    offset = state.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is None:
        if header.set_zero_if_not_found is False:
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        if not is_young_queue(state, state.store.queue(header.topic, header.queue_id)):
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        offset, _end = state.store.bounds(header.topic, header.queue_id)
    return reply(request.command, ext={"offset": str(offset)})


def is_young_queue(state: BrokerState, queue: ConsumeQueue | None) -> bool:
    """Whether a queue has all its messages, and they are probably in memory."""
    if queue is None or queue.first > queue.begin or queue.end == queue.first:
        return False
    return is_young(state, queue.unit(queue.first).commit_log_offset)


def is_young(state: BrokerState, commit_log_offset: int) -> bool:
    """Whether a log offset is so near to the end of the log that it is probably in memory.

    Source: Apache RocketMQ `DefaultMessageStore.estimateInMemByCommitOffset`.
    """
    room = state.memory_size * state.config.in_memory_percent // 100
    return state.store.log.end - commit_log_offset <= room


def update_consumer_offset(state: BrokerState, request: Request) -> Command:
    """UPDATE_CONSUMER_OFFSET. Unlike a heartbeat or a pull it creates no group.

    A commit for a queue that the topic does not have is confirmed, as in Apache, but not stored.
    """
    ext = request.command.ext_fields
    group, topic = ext["consumerGroup"], ext.get("topic", "")
    if state.groups.get(group) is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    if state.topics.get(topic) is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
    if not _is_number(ext.get("queueId")):
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
    if not _is_number(ext.get("commitOffset")):
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
    header = UpdateConsumerOffsetHeader.decode(ext)
    if state.offsets.pending_reset(group, topic, header.queue_id) is not None:
        return reply(request.command, remark="Offset has been previously reset")
    if is_known_queue(state, topic, header.queue_id):
        if not state.offsets.may_commit(group, topic, (header.queue_id,)):
            raise no_room_for_offsets()
        state.offsets.commit(group, topic, header.queue_id, header.commit_offset)
    return reply(request.command)


def is_known_queue(state: BrokerState, topic: str, queue_id: int) -> bool:
    """Whether a topic has this queue, or had it and the store still has it.

    Without this check peers could invent ids, and tables by queue would grow without limit.
    """
    config = state.topics.get(topic)
    if config is None:
        return False
    has_it = 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
    return has_it or state.store.queue(topic, queue_id) is not None


def _is_number(text: str | None) -> bool:
    """Whether the text is a number for Java; Apache treats any other text as a missing field."""
    return text is not None and _NUMBER.fullmatch(text) is not None


def get_max_offset(state: BrokerState, request: Request) -> Command:
    """GET_MAX_OFFSET: the offset of the queue's next message."""
    return _bound(state, request, _END)


def get_min_offset(state: BrokerState, request: Request) -> Command:
    """GET_MIN_OFFSET: the offset of the oldest message in the queue."""
    return _bound(state, request, _FIRST)


def _bound(state: BrokerState, request: Request, which: int) -> Command:
    header = QueueHeader.decode(request.command.ext_fields)
    bounds = state.store.bounds(header.topic, header.queue_id)
    return reply(request.command, ext={"offset": str(bounds[which])})


def get_earliest_store_time(state: BrokerState, request: Request) -> Command:
    """GET_EARLIEST_MSG_STORETIME: store time of the oldest message in ms; -1 without messages."""
    header = QueueHeader.decode(request.command.ext_fields)
    queue = state.store.queue(header.topic, header.queue_id)
    time_ms = -1
    if queue is not None and queue.end > queue.first:
        time_ms = store_time_ms(state, queue, queue.first)
    return reply(request.command, ext={"timestamp": str(time_ms)})


def search_offset_by_timestamp(state: BrokerState, request: Request) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP.

    The lower boundary is the first message that was stored at this time or later. The upper
    boundary is the last message that was stored at this time or earlier. Both are limited to the
    messages of the queue.
    """
    header = SearchOffsetHeader.decode(request.command.ext_fields)
    queue = state.store.queue(header.topic, header.queue_id)
    is_upper = (header.boundary_type or "lower").lower() == "upper"
    offset = offset_at_time(state, queue, header.timestamp, is_upper=is_upper)
    return reply(request.command, ext={"offset": str(offset)})


def offset_at_time(
    state: BrokerState, queue: ConsumeQueue | None, time_ms: int, *, is_upper: bool = False
) -> int:
    """Return the offset in a queue by store time; 0 for an unknown queue."""
    if queue is None or queue.end == 0:
        return 0
    times = _StoreTimes(state, queue)
    if is_upper:
        offset = queue.first + bisect_right(times, time_ms) - 1
    else:
        offset = queue.first + bisect_left(times, time_ms)
    return max(queue.first, min(offset, queue.end))


def store_time_ms(state: BrokerState, queue: ConsumeQueue, offset: int) -> int:
    """Return the store time of the message at a queue offset, in ms; -1 if it is gone."""
    record = state.store.reader.message(queue, offset)
    return record.store_time_ms if record else -1


class _StoreTimes:
    """The store times of a queue's messages, as a sequence that reads the log on access.

    A damaged message gets the store time of the first message after the damage, or a time after all
    others. So the times never decrease.
    """

    def __init__(self, state: BrokerState, queue: ConsumeQueue) -> None:
        self._log = state.store.log
        self._reader = state.store.reader
        self._queue = queue

    def __len__(self) -> int:
        return self._queue.end - self._queue.first

    def __getitem__(self, index: int) -> int:
        log, queue = self._log, self._queue
        offset = queue.first + index
        while offset < queue.end:
            unit = queue.unit(offset)
            record = self._reader.message(queue, offset)
            if record:
                return record.store_time_ms
            if unit.commit_log_offset < log.start:
                return -1
            damage_end = log.damage.end_at(unit.commit_log_offset)
            offset = max(offset + 1, queue.index_of(damage_end))
        return _LAST_MS
