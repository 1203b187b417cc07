"""Queue locks for ordered consumption.

Source: Apache RocketMQ `AdminBrokerProcessor`, `LockBatchRequestBody`.
"""

import msgspec

from reliable_mq.broker_core.requests.offsets import is_known_queue
from reliable_mq.broker_core.requests.refusal import (
    QUEUES_ASKED_MAX,
    body_of,
    refuse_above,
    refuse_long_names,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.decodable import decodable
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.peer_texts import read_json


class _Queue(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


@decodable
class _LockBody(msgspec.Struct, rename="camel"):
    """`until_disconnected` is our own field; Apache's clients never send it."""

    consumer_group: str
    client_id: str
    mq_set: list[_Queue] = msgspec.field(default_factory=list)
    until_disconnected: bool = False

    def queues(self) -> dict[MessageQueue, _Queue]:
        """Return the queues without the broker name: it is always this broker."""
        return {MessageQueue(q.topic, "", q.queue_id): q for q in self.mq_set}


def lock_batch_mq(state: BrokerState, request: Request) -> Command:
    """LOCK_BATCH_MQ. No client gets a lock of a queue that this broker does not have."""
    body = _body(request)
    asked = {
        place: queue
        for place, queue in body.queues().items()
        if is_known_queue(state, queue.topic, queue.queue_id)
    }
    held = state.locks.lock(
        body.consumer_group,
        body.client_id,
        asked,
        request.now_ms,
        request.connection.id if body.until_disconnected else None,
    )
    queues = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        for queue in map(asked.__getitem__, held)
    ]
    return reply(request.command, body=fastjson.dumps({"lockOKMQSet": queues}))


def unlock_batch_mq(state: BrokerState, request: Request) -> Command:
    """UNLOCK_BATCH_MQ."""
    body = _body(request)
    state.locks.unlock(body.consumer_group, body.client_id, body.queues())
    return reply(request.command)


def _body(request: Request) -> _LockBody:
    body = msgspec.convert(read_json(body_of(request.command)), _LockBody)
    refuse_above(len(body.mq_set), QUEUES_ASKED_MAX, "queues")
    refuse_long_names(body.consumer_group, body.client_id)
    return body
