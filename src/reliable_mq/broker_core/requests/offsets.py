"""Offsets of groups and of queues.

Source: Apache RocketMQ `ConsumerManageProcessor`, `AdminBrokerProcessor`.
"""

from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import (
    ConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)


def query_consumer_offset(state: BrokerState, request: Request) -> Command:
    """QUERY_CONSUMER_OFFSET.

    A group without an offset starts at 0 when the queue still has its first message: it is new,
    and the queue is young.
    """
    header = ConsumerOffsetHeader.decode(request.command.ext_fields)
    offset = state.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is None and header.set_zero_if_not_found is not False:
        queue = state.store.queue(header.topic, header.queue_id)
        if queue is not None and queue.first == 0 and queue.end > 0:
            offset = 0
    if offset is None:
        return reply(
            request.command,
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        )
    return reply(request.command, ext={"offset": str(offset)})


def update_consumer_offset(state: BrokerState, request: Request) -> Command:
    """UPDATE_CONSUMER_OFFSET."""
    header = UpdateConsumerOffsetHeader.decode(request.command.ext_fields)
    if state.topics.get(header.topic) is None:
        return reply(
            request.command,
            ResponseCode.TOPIC_NOT_EXIST,
            f"Topic {header.topic} does not exist",
        )
    if state.groups.find(header.consumer_group, request.now_ms) is None:
        return reply(
            request.command,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group {header.consumer_group} does not exist",
        )
    state.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return reply(request.command)


def get_max_offset(state: BrokerState, request: Request) -> Command:
    """GET_MAX_OFFSET."""
    header = QueueHeader.decode(request.command.ext_fields)
    queue = state.store.queue(header.topic, header.queue_id)
    return reply(request.command, ext={"offset": str(queue.end if queue else 0)})


def get_min_offset(state: BrokerState, request: Request) -> Command:
    """GET_MIN_OFFSET."""
    header = QueueHeader.decode(request.command.ext_fields)
    queue = state.store.queue(header.topic, header.queue_id)
    return reply(request.command, ext={"offset": str(queue.first if queue else -1)})
