"""Queue locks: while a member holds one, no other member of its group starts a message there.

A broker keeps a lock for 60 s after its last renewal and forgets it when it restarts; a member
trusts it for less, and not beyond the connection. Source: Apache RocketMQ `RebalanceImpl.lock`,
`RebalanceLockManager`.
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
    """The queues that a broker locked for this member, trusted until `expires`.

    In seconds of the clock of leases, which goes on while the machine sleeps.
    """

    queues: set[MessageQueue]
    expires: float


def lock_queues(
    group: ConsumerGroup, broker_name: str, queues: Sequence[AssignedQueue]
) -> Flow[LockGrant]:
    """Ask for the locks of queues of one broker, new or to be renewed.

    The grant counts from before the question was sent.

    Raises:
        Unavailable, RemoteError, ProtocolError: when there is no answer that reads; locks that are
            held run out by themselves.
    """
    address = group.master_of(broker_name)
    if address is None:
        raise NoRoute(f"no master of broker {broker_name} is known")
    began = yield from now()
    command = _lock_command(RequestCode.LOCK_BATCH_MQ, group, queues)
    reply = yield from call(address, command, group.settings.request_timeout_seconds)
    return LockGrant(_granted(reply), began.lease_seconds + group.settings.lock_valid_seconds)


def unlock(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[None]:
    """Give locks back, over a new connection where one was lost just now; else they run out.

    No request for them may be under way: Apache's broker handles those of one connection in any
    order, and one that it handles afterwards locks a queue that nobody has.
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
        "untilDisconnected": True,  # to the bundled broker; Apache's does not know it
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
        raise ProtocolError(f"a reply to a lock request does not read: {error!r}") from error
