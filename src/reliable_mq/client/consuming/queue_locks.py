"""Queue locks: while a member holds one, no other member of its group starts a message there.

A broker keeps a lock for 60 s after its last renewal, and loses it on a restart. A member uses it
for a shorter time, and only while the connection lasts. Source: Apache RocketMQ
`RebalanceImpl.lock`, `RebalanceLockManager`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.flow import Call, Flow, call, call_all, now
from reliable_mq.errors import ConnectionLost, NoRoute, ProtocolError
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.remote_faults import remote_error


class LockGrant(NamedTuple):
    """The queues that a broker locked for this member, valid until `expires`.

    `expires` is in seconds of the lease clock, which advances while the machine sleeps.
    """

    queues: set[MessageQueue]
    expires: float


def lock_queues(
    group: ConsumerGroup, broker_name: str, queues: Sequence[AssignedQueue]
) -> Flow[LockGrant]:
    """Request or renew the locks of queues at one broker.

    Their time begins before the request is sent.

    Raises:
        Unavailable, RemoteError, ProtocolError: when there is no valid answer; held locks expire.
    """
    address = group.master_of(broker_name)
    if address is None:
        raise NoRoute(f"no master of broker {broker_name} is known")
    began = yield from now()
    command = _lock_command(RequestCode.LOCK_BATCH_MQ, group, queues)
    reply = yield from call(address, command, group.settings.request_timeout_seconds)
    return LockGrant(_granted(reply), began.lease_seconds + group.settings.lock_valid_seconds)


def unlock(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[None]:
    """Release locks, over a new connection if one was just lost. On failure they expire.

    No request for them may be in flight: Apache's broker may handle requests of one connection in
    any order. A lock request handled after the release would lock a queue without an owner.
    """
    calls = _unlock_calls(group, queues)
    answers = yield from call_all(calls)
    lost = [
        call
        for call, answer in zip(calls, answers, strict=True)
        if isinstance(answer, ConnectionLost)
    ]
    yield from call_all(lost)


def _unlock_calls(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> list[Call]:
    calls: list[Call] = []
    for broker_name, of_broker in group.by_broker(q for q in queues if q.needs_lock):
        address = group.master_of(broker_name)
        if address is not None:
            command = _lock_command(RequestCode.UNLOCK_BATCH_MQ, group, of_broker)
            calls.append(Call(address, command, group.settings.request_timeout_seconds))
    return calls


def _lock_command(
    code: RequestCode, group: ConsumerGroup, queues: Sequence[AssignedQueue]
) -> Command:
    body = {
        "clientId": group.client_id,
        "consumerGroup": group.name,
        "mqSet": [
            {
                "brokerName": assigned.queue.broker_name,
                "queueId": assigned.queue.queue_id,
                "topic": assigned.queue.topic,
            }
            for assigned in queues
        ],
        "onlyThisBroker": False,
        "untilDisconnected": True,  # for the bundled broker; Apache's ignores it
    }
    return request(code, None, msgspec.json.encode(body))


def _granted(reply: Command) -> set[MessageQueue]:
    if reply.code != 0:
        raise remote_error(reply.code, reply.remark)
    try:
        return {
            MessageQueue(item["topic"], item["brokerName"], item["queueId"])
            for item in fastjson.loads(reply.body)["lockOKMQSet"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a reply to a lock request cannot be decoded: {error!r}") from error
