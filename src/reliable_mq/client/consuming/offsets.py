"""Offsets: where a group begins in a queue, and how far it has come.

Source: Apache RocketMQ `RebalancePushImpl.computePullFromWhere`, `RemoteBrokerOffsetStore`.
"""

import logging
from collections.abc import Iterable

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.local_offsets import LocalOffsets
from reliable_mq.client.consuming.offset_tables import OffsetCommit
from reliable_mq.client.flow import Flow, call, now, reply_of, succeeded, work
from reliable_mq.errors import NoRoute, ProtocolError, ReliableMQError, StoreError
from reliable_mq.message import MessageQueue
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
    """Return the offset that a reply carries.

    Raises:
        RemoteError: when the reply carries an error.
        ProtocolError: when it carries no offset.
    """
    try:
        return int(succeeded(reply).ext_fields["offset"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a reply carries no offset: {reply.ext_fields}") from error


def place_in(reply: Command) -> int:
    """Return the offset of a place in a queue: where it begins, ends, or was at a time.

    Some brokers answer -1 for a queue that never had a message. It begins at 0.

    Raises:
        RemoteError: when the reply carries an error.
        ProtocolError: when it carries no offset.
    """
    return max(0, offset_in(reply))


def committed_offset(group: str, queue: MessageQueue, address: str, timeout: float) -> Flow[int]:
    """Return the offset that `group` has committed in `queue`, or -1 when it has none.

    A broker answers 0 for a group that never was there when the queue's first message is still
    young, so that a new group misses nothing.

    Raises:
        RemoteError, Unavailable: when the broker does not tell.
    """
    header = ConsumerOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
    command = request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
    reply = yield from call(address, command, timeout)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return -1
    return offset_in(reply)


def first_offset(group: ConsumerGroup, queue: MessageQueue, address: str) -> Flow[int]:
    """Return where the group reads on in `queue`: its committed offset, else what it asked for.

    A retry topic is always read from its beginning by a group that is new to it.

    Raises:
        RemoteError, Unavailable: when the broker does not tell.
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
    """Return where the group reads on in `queue` while its master is away.

    A slave has the master's offsets of some seconds ago: a few messages come again. Of what it does
    not know it is not believed, because a beginning that it makes up would pass messages over.

    Raises:
        NoRoute: when the slave knows no offset: the master must tell.
        RemoteError, Unavailable: when it does not answer.
    """
    timeout = group.settings.request_timeout_seconds
    committed = yield from committed_offset(group.name, queue, address, timeout)
    if committed < 0:
        raise NoRoute(f"no master of broker {queue.broker_name} is known")
    return committed


def commit(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[int]:
    """Commit what has moved since the last time, and wait until the brokers have it.

    Returns how many offsets were committed; what fails is committed the next time. Not one-way, as
    Apache's client does: its broker takes requests by many threads, and what came without waiting
    for an answer could be stored behind a later one, and set the group back.

    Raises:
        StoreError: when a group that broadcasts cannot write its offsets.
    """
    if group.local_offsets is not None:
        return (yield from commit_locally(group.local_offsets, queues))
    instant = yield from now()
    moved = [each for each in queues if each.commit_offset != each.committed_offset]
    commits = _commits(group, moved, instant.lease_seconds)
    answers = yield from group.offset_tables.commit(list(commits.values()))
    count = 0
    for (assigned, sent), answer in zip(commits.items(), answers, strict=True):
        try:
            succeeded(reply_of(answer))
        except ReliableMQError:
            continue
        assigned.committed_offset = sent.offset
        count += 1
    return count


def commit_at_last(group: ConsumerGroup, queues: Iterable[AssignedQueue]) -> Flow[None]:
    """Commit queues that are about to be given back, and wait for that; what fails is done with."""
    if group.local_offsets is None:
        instant = yield from now()
        commits = _commits(group, queues, instant.lease_seconds)
        yield from group.offset_tables.commit(list(commits.values()))
        return
    try:
        yield from commit_locally(group.local_offsets, queues)
    except StoreError as error:
        log.error("group %s: offsets were not kept: %s", group.name, error)  # noqa: TRY400


def commit_locally(local: LocalOffsets, queues: Iterable[AssignedQueue]) -> Flow[int]:
    """Keep what has moved, and return how many offsets that were.

    Raises:
        StoreError: when they cannot be kept; next time they are tried again.
    """
    moved = {
        assigned: offset
        for assigned in queues
        if assigned.is_started and (offset := assigned.commit_offset) != assigned.committed_offset
    }
    if moved:
        local.note({assigned.queue: offset for assigned, offset in moved.items()})
        yield from work(local.save)
    for assigned, offset in moved.items():
        assigned.committed_offset = offset
    return len(moved)


def _commits(
    group: ConsumerGroup, queues: Iterable[AssignedQueue], lease_seconds: float
) -> dict[AssignedQueue, OffsetCommit]:
    """Return what is to be committed of queues, now by the clock of leases."""
    commits: dict[AssignedQueue, OffsetCommit] = {}
    for assigned in queues:
        address = _to_commit_at(group, assigned, lease_seconds)
        if address is not None:
            commits[assigned] = OffsetCommit(address, assigned.queue, assigned.commit_offset)
    return commits


def _to_commit_at(
    group: ConsumerGroup, assigned: AssignedQueue, lease_seconds: float
) -> str | None:
    """Return the address to commit at, or None.

    Without its lock a queue may have another owner, whose commits must not be set back; nor when it
    was given back while another broker kept us waiting.
    """
    if assigned.is_given_back or not assigned.is_started or not assigned.holds_lock(lease_seconds):
        return None
    return group.master_of(assigned.queue.broker_name)


def read_reset(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets in the body of RESET_CONSUMER_CLIENT_OFFSET.

    Raises:
        ProtocolError: when the body does not read.
    """
    try:
        table = fastjson.loads(body)["offsetTable"]
        return {
            MessageQueue(key["topic"], key["brokerName"], int(key["queueId"])): int(offset)
            for key, offset in ((dict(pairs), offset) for pairs, offset in table.items())
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"a reset of offsets does not read: {error!r}") from error
