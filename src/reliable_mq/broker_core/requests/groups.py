"""Heartbeats, group members and queue locks.

Source: Apache RocketMQ `ClientManageProcessor`, `ConsumerManageProcessor`, `AdminBrokerProcessor`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.clients import Member
from reliable_mq.broker_core.names import group_fault
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import UnregisterClientHeader


def heart_beat(state: BrokerState, request: Request) -> Command:
    """HEART_BEAT."""
    command = request.command
    beat = fastjson.loads(command.body)
    member = Member(
        request.connection.id,
        beat["clientID"],
        command.language,
        command.version,
        request.now_ms,
    )
    for producer in beat.get("producerDataSet") or []:
        state.clients.register_producer(producer["groupName"], member)
    for consumer in beat.get("consumerDataSet") or []:
        _register_consumer(state, consumer, member, request.now_ms)
    return reply(command)


def _register_consumer(
    state: BrokerState, consumer: dict[str, Any], member: Member, now_ms: int
) -> None:
    name = consumer["groupName"]
    if group_fault(name):
        return
    is_known = state.groups.get(name) is not None
    group = state.groups.find(name, now_ms)
    if group is None:
        return
    if not is_known:
        state.groups_changed()
    if group.retry_queue_nums > 0:
        state.ensure_retry_topic(name, group.retry_queue_nums, now_ms)
    if state.clients.register_consumer(consumer, member):
        state.notify_group(name)


def unregister_client(state: BrokerState, request: Request) -> Command:
    """UNREGISTER_CLIENT."""
    header = UnregisterClientHeader.decode(request.command.ext_fields)
    connection = request.connection.id
    if header.producer_group:
        state.clients.unregister_producer(header.producer_group, connection)
    group = header.consumer_group
    if group and state.clients.unregister_consumer(group, connection):
        state.notify_group(group)
    return reply(request.command)


def get_consumer_list_by_group(state: BrokerState, request: Request) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP."""
    name = request.command.ext_fields.get("consumerGroup", "")
    group = state.clients.consumer_group(name)
    if group is None:
        return reply(
            request.command, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}"
        )
    body = msgspec.json.encode({"consumerIdList": group.client_ids()})
    return reply(request.command, body=body)


def lock_batch_mq(state: BrokerState, request: Request) -> Command:
    """LOCK_BATCH_MQ. `untilDisconnected` is ours: clients of Apache never send it."""
    group, client_id, queues = _lock_body(request)
    bound = fastjson.loads(request.command.body).get("untilDisconnected") is True
    connection = request.connection.id if bound else None
    held = state.locks.lock(group, client_id, queues, request.now_ms, connection)
    body = {"lockOKMQSet": [_queue_json(queue) for queue in held]}
    return reply(request.command, body=msgspec.json.encode(body))


def unlock_batch_mq(state: BrokerState, request: Request) -> Command:
    """UNLOCK_BATCH_MQ."""
    state.locks.unlock(*_lock_body(request))
    return reply(request.command)


def _lock_body(request: Request) -> tuple[str, str, list[MessageQueue]]:
    body = fastjson.loads(request.command.body)
    queues = [
        MessageQueue(item["topic"], item["brokerName"], item["queueId"])
        for item in body.get("mqSet") or []
    ]
    return body["consumerGroup"], body["clientId"], queues


def _queue_json(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
