"""Offsets: where a group begins to read a queue, and what it commits.

Source: Apache RocketMQ `RebalancePushImpl.computePullFromWhere`, `RemoteBrokerOffsetStore`.
"""

import logging
from collections.abc import Iterable

from reliable_mq.client.connecting.routes import MASTER_ID
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.local_offsets import LocalOffsets
from reliable_mq.client.consuming.offset_tables import OffsetCommit
from reliable_mq.client.flow import Flow, call, now, reply_of, succeeded, work
from reliable_mq.errors import NoRoute, ProtocolError, ReliableMQError, StoreError
from reliable_mq.message import MessageQueue
from reliable_mq.telemetry import client_events
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import (
    ConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
)

log = logging.getLogger(__name__)


def offset_in(reply: Command) -> int:
    """Return the offset in a reply.

    Raises:
        RemoteError: when the reply is an error.
        ProtocolError: when it has no offset.
    """
    try:
        return int(succeeded(reply).ext_fields["offset"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a reply carries no offset: {reply.ext_fields}") from error


def place_in(reply: Command) -> int:
    """Return the offset in a reply about a place in a queue: its beginning, its end, or a time.

    Some brokers answer -1 for a queue that never had a message. It begins at 0.

    Raises:
        RemoteError: when the reply is an error.
        ProtocolError: when it has no offset.
    """
    return max(0, offset_in(reply))


def committed_offset(group: str, queue: MessageQueue, address: str, timeout: float) -> Flow[int]:
    """Return the offset that `group` has committed in `queue`, or -1 when there is none.

    For an unknown group, a broker answers 0 while it still has the queue's first message in memory.
    So a new group misses no message.

    Raises:
        RemoteError, Unavailable: when the broker does not return it.
    """
    header = ConsumerOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
    command = request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
    reply = yield from call(address, command, timeout)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return -1
    return offset_in(reply)


def first_offset(group: ConsumerGroup, queue: MessageQueue, address: str) -> Flow[int]:
    """Return the start of reading in `queue`: the committed offset, or else the configured start.

    A group always reads a new retry topic from its beginning.

    Raises:
        RemoteError, Unavailable: when the broker does not return it.
    """
    timeout = group.settings.request_timeout_seconds
    if group.local_offsets is not None:
        committed = group.local_offsets.find(queue)
    else:
        committed = yield from committed_offset(group.name, queue, address, timeout)
    subscription = group.subscription
    if committed >= 0:
        return committed
    if subscription.from_where == "first" or queue.topic == subscription.retry_topic:
        return 0
    if subscription.from_where == "timestamp":
        search = SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=subscription.from_time_ms
        )
        command = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())
    else:
        at = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        command = request(RequestCode.GET_MAX_OFFSET, at.to_ext())
    reply = yield from call(address, command, timeout)
    return place_in(reply)


def offset_at_slave(group: ConsumerGroup, queue: MessageQueue, address: str) -> Flow[int]:
    """Return the start of reading in `queue` while its master is away.

    A slave has the master's offsets of a few seconds ago, so a few messages are delivered again.
    Its default for an unknown offset is not used, because it could skip messages.

    Raises:
        NoRoute: when the slave has no offset: only the master can answer.
        RemoteError, Unavailable: when it does not answer.
    """
    timeout = group.settings.request_timeout_seconds
    committed = yield from committed_offset(group.name, queue, address, timeout)
    if committed < 0:
        raise NoRoute(f"no master of broker {queue.broker_name} is known")
    return committed


def commit(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[int]:
    """Commit offsets that have changed since the last commit, and wait for the brokers' answers.

    Without a master they are committed at a slave, and at the master again when it is back.
    Returns the number of committed offsets. A failed commit is repeated the next time. Apache's
    client commits one-way. Its broker handles requests in many threads, so a one-way commit could
    be handled after a later one, and set the group back. Therefore each commit here has an answer.

    Raises:
        StoreError: when a broadcasting group cannot write its offsets.
    """
    if group.local_offsets is not None:
        return (yield from commit_locally(group.local_offsets, queues))
    instant = yield from now()
    moved = [
        each
        for each in queues
        if each.commit_offset != each.committed_offset
        or (each.is_committed_at_slave and group.master_of(each.queue.broker_name))
    ]
    commits = _commits(group, moved, instant.lease_seconds)
    answers = yield from group.offset_tables.commit(list(commits.values()))
    count = 0
    for (assigned, sent), answer in zip(commits.items(), answers, strict=True):
        try:
            succeeded(reply_of(answer))
        except ReliableMQError:
            continue
        assigned.committed_offset = sent.offset
        assigned.is_committed_at_slave = sent.address != group.master_of(sent.queue.broker_name)
        count += 1
    return count


def commit_at_last(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[None]:
    """Commit queues that are about to be given back, and wait. Failures are not repeated."""
    if group.local_offsets is None:
        instant = yield from now()
        commits = _commits(group, queues, instant.lease_seconds)
        yield from group.offset_tables.commit(list(commits.values()))
        return
    try:
        yield from commit_locally(group.local_offsets, queues)
    except StoreError as error:
        client_events.OFFSETS_NOT_KEPT.log(log, group=group.name, error=error)


def commit_locally(local: LocalOffsets, queues: Iterable[AssignedQueue]) -> Flow[int]:
    """Save changed offsets locally, and return their number.

    Raises:
        StoreError: when that fails; the next call tries again.
    """
    moved = {
        assigned: offset
        for assigned in queues
        if assigned.is_started and (offset := assigned.commit_offset) != assigned.committed_offset
    }
    if moved:
        local.remember_offsets({assigned.queue: offset for assigned, offset in moved.items()})
        yield from work(local.save)
    for assigned, offset in moved.items():
        assigned.committed_offset = offset
    return len(moved)


def _commits(
    group: ConsumerGroup, queues: Iterable[AssignedQueue], lease_seconds: float
) -> dict[AssignedQueue, OffsetCommit]:
    """Return the commits of queues at this time on the lease clock."""
    commits: dict[AssignedQueue, OffsetCommit] = {}
    for assigned in queues:
        address = _to_commit_at(group, assigned, lease_seconds)
        if address is not None:
            commits[assigned] = OffsetCommit(address, assigned.queue, assigned.commit_offset)
    return commits


def _to_commit_at(
    group: ConsumerGroup, assigned: AssignedQueue, lease_seconds: float
) -> str | None:
    """Return the address to commit at, or None: the master's, or a slave's without a master.

    A slave hands the offsets on when its master is back.
    Without its lock, a queue may have another owner, whose commits must not be set back. The same
    holds if it was given back while this flow waited for another broker.
    """
    if assigned.is_given_back or not assigned.is_started or not assigned.holds_lock(lease_seconds):
        return None
    broker = group.routes.broker(assigned.queue.broker_name)
    return broker.to_read_from(MASTER_ID) if broker is not None else None


def read_reset(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets in the body of RESET_CONSUMER_CLIENT_OFFSET.

    Raises:
        ProtocolError: when the body cannot be decoded.
    """
    try:
        table = fastjson.loads(body)["offsetTable"]
        return {
            MessageQueue(key["topic"], key["brokerName"], int(key["queueId"])): int(offset)
            for key, offset in ((dict(pairs), offset) for pairs, offset in table.items())
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"a reset of offsets cannot be decoded: {error!r}") from error
