"""Resets of a group's offsets: to a time, to the end, to an offset, or to another group's.

Brokers since 5.0 store a new offset and inform the members. Older brokers, and those with
`useServerSideResetOffset=false`, leave the reset to members. For an offline group there, the offset
is committed. Both kinds of brokers are supported. Source: Apache RocketMQ `DefaultMQAdminExtImpl`,
`AdminBrokerProcessor.resetOffset`, `Broker2Client.resetOffset`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    decoded,
    first_failure,
    queue_of,
)
from reliable_mq.client.administering.members import connections
from reliable_mq.client.administering.progress import QueueProgress, offsets_in, progress
from reliable_mq.client.administering.topics import brokers_of
from reliable_mq.client.connecting.routes import Broker
from reliable_mq.client.consuming.offset_tables import OffsetCommit, OffsetTables, commit_command
from reliable_mq.client.consuming.offsets import place_in
from reliable_mq.client.flow import Call, Flow, call, call_all, reply_of, succeeded
from reliable_mq.decodable import decodable
from reliable_mq.errors import FoundNowhere, NoRoute, ReliableMQError, RemoteError, UsageError
from reliable_mq.message import MessageQueue
from reliable_mq.names import RETRY_PREFIX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import (
    CloneGroupOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
)
from reliable_mq.wire.java_properties import parse_properties

END = -1
"""As a time: after the newest message."""


class QueueReset(msgspec.Struct, frozen=True, kw_only=True):
    """A group's offset in a queue before and after: messages before the offset are consumed."""

    queue: MessageQueue
    before: int
    after: int


def to_time(
    cluster: AdminTarget, group: str, topic: str, time_ms: int, *, dry_run: bool = False
) -> Flow[ClusterReply[list[QueueReset]]]:
    """Set a group's offsets in a topic to the first messages stored at a time or later.

    Args:
        cluster: the cluster to ask.
        group: the consumer group, online or not.
        topic: the topic.
        time_ms: milliseconds since the epoch; `END`: after the newest message.
        dry_run: return what would change, but change nothing.

    Raises:
        UsageError: when the time is before the epoch.
        NoRoute: when the name servers do not know the topic.
        NotFound: when the brokers do not know the group.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    if time_ms < END:
        raise UsageError(f"{time_ms} ms is before 1970")
    brokers = yield from brokers_of(cluster, topic)
    known = yield from offsets_in(cluster, brokers, group, topic)
    before = {row.queue: row.committed for rows in known.value.values() for row in rows}
    rest = {name: broker for name, broker in brokers.items() if name not in known.failures}
    if dry_run:
        answers = yield from _planned(cluster, rest, known.value, time_ms)
    else:
        answers = yield from _reset(cluster, rest, known.value, group, topic, time_ms)
    failures = {**known.failures, **answers.failures}
    if failures and not answers.value:
        raise first_failure(failures)
    resets = [
        QueueReset(queue=queue, before=before.get(queue, 0), after=offset)
        for queue, offset in sorted(answers.value.items())
    ]
    return ClusterReply(resets, failures)


_Offsets = dict[MessageQueue, int]
_Known = Mapping[str, Sequence[QueueProgress]]


def _reset(
    cluster: AdminTarget, brokers: Brokers, known: _Known, group: str, topic: str, time_ms: int
) -> Flow[ClusterReply[_Offsets]]:
    header = ResetOffsetHeader(topic=topic, group=group, timestamp=time_ms, is_force=True)
    asked = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
    answers = yield from ask_all(cluster, brokers, asked, _read_offsets, masters_only=True)
    offsets = {queue: offset for part in answers.value.values() for queue, offset in part.items()}
    failures = dict(answers.failures)
    for name, error in answers.failures.items():
        if isinstance(error, RemoteError) and error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            try:
                offsets |= yield from _written(cluster, brokers[name], known[name], group, time_ms)
                del failures[name]
            except ReliableMQError as failure:
                failures[name] = failure
    return ClusterReply(offsets, failures)


@decodable
class _ResetBody(msgspec.Struct, rename="camel"):
    offset_table: dict[Any, int]


def _read_offsets(reply: Command) -> _Offsets:
    what = "the answer to a reset of offsets"
    table = decoded(reply, _ResetBody, what).offset_table
    return {queue_of(key, what): offset for key, offset in table.items()}


def _planned(
    cluster: AdminTarget, brokers: Brokers, known: _Known, time_ms: int
) -> Flow[ClusterReply[_Offsets]]:
    offsets: _Offsets = {}
    failures: dict[str, ReliableMQError] = {}
    for name, broker in brokers.items():
        try:
            offsets |= yield from _targets(cluster, broker, known[name], time_ms)
        except ReliableMQError as error:
            failures[name] = error
    return ClusterReply(offsets, failures)


def _targets(
    cluster: AdminTarget, broker: Broker, rows: Iterable[QueueProgress], time_ms: int
) -> Flow[_Offsets]:
    """Return the offset of a time in each queue."""
    queues = [row.queue for row in rows]
    commands = [_search(queue, time_ms) for queue in queues]
    answers = yield from _answers(cluster, broker, commands)
    return {queue: place_in(reply) for queue, reply in zip(queues, answers, strict=True)}


def _search(queue: MessageQueue, time_ms: int) -> Command:
    if time_ms == END:
        at = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        return request(RequestCode.GET_MAX_OFFSET, at.to_ext())
    search = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms)
    return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())


def _written(
    cluster: AdminTarget, broker: Broker, rows: Sequence[QueueProgress], group: str, time_ms: int
) -> Flow[_Offsets]:
    """Commit offsets of an offline group, at a broker that leaves resets to members."""
    targets = yield from _targets(cluster, broker, rows, time_ms)
    address, tables = _master(broker), OffsetTables(group, cluster.settings.request_timeout_seconds)
    commits = [OffsetCommit(address, queue, offset) for queue, offset in targets.items()]
    for answer in (yield from tables.commit(commits)):
        succeeded(reply_of(answer))
    return targets


def _answers(
    cluster: AdminTarget, broker: Broker, commands: Iterable[Command]
) -> Flow[list[Command]]:
    address, timeout = _master(broker), cluster.settings.request_timeout_seconds
    calls = [Call(address, command, timeout) for command in commands]
    return [reply_of(answer) for answer in (yield from call_all(calls))]


def _master(broker: Broker) -> str:
    if broker.master is None:
        raise NoRoute(f"no name server knows the master of broker {broker.name}")
    return broker.master


def to_offset(
    cluster: AdminTarget, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
) -> Flow[QueueReset]:
    """Set a group's offset in one queue.

    Args:
        cluster: the cluster to ask.
        group: the consumer group, online or not.
        queue: the queue.
        offset: offset of the next message for the group.
        dry_run: return what would change, but change nothing.

    Raises:
        UsageError: when the broker or the queue does not exist, or the offset is outside of the
            queue. Also when the group is online at a broker that cannot set a single queue.
        NotFound: when the broker does not know the group.
        RemoteError, Unavailable, ProtocolError: when the broker does not do it.
    """
    broker = (yield from all_brokers(cluster, [queue.broker_name]))[queue.broker_name]
    brokers = {broker.name: broker}
    known = yield from offsets_in(cluster, brokers, group, queue.topic)
    if known.failures:
        raise first_failure(known.failures)
    rows = {row.queue: row for row in known.value[broker.name]}
    if queue not in rows:
        raise UsageError(f"broker {broker.name} has no queue {queue.queue_id} of {queue.topic}")
    at = QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext()
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    ends = yield from _answers(cluster, broker, [request(code, at) for code in codes])
    first, end = map(place_in, ends)
    if not first <= offset <= end:
        raise UsageError(f"offset {offset} is not in the queue: give {first} to {end}")
    reset = QueueReset(queue=queue, before=rows[queue].committed, after=offset)
    if not dry_run:
        yield from _set(cluster, broker, group, queue, offset)
    return reset


def _set(
    cluster: AdminTarget, broker: Broker, group: str, queue: MessageQueue, offset: int
) -> Flow[None]:
    timeout = cluster.settings.request_timeout_seconds
    reply = yield from call(_master(broker), request(RequestCode.GET_BROKER_CONFIG), timeout)
    properties = parse_properties(succeeded(reply).body.decode("utf-8", "replace"))
    if properties.get("useServerSideResetOffset", "false") == "true":
        header = ResetOffsetHeader(
            topic=queue.topic, group=group, queue_id=queue.queue_id, offset=offset, is_force=True
        )
        command = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
    else:  # otherwise the members would reset all queues
        online = yield from connections(cluster, group)
        if online.value.members:
            raise UsageError(
                f"broker {broker.name} cannot set one queue of a group that is online: stop the"
                f" members of {group} first, or reset the topic by time"
            )
        command = commit_command(group, queue, offset)
    succeeded((yield from call(_master(broker), command, timeout)))


def clone(
    cluster: AdminTarget, source: str, target: str, topic: str = "", *, dry_run: bool = False
) -> Flow[ClusterReply[list[QueueReset]]]:
    """Copy one group's offsets to another group, in one topic or in all topics of the first.

    Args:
        cluster: the cluster to ask.
        source: the consumer group to copy from.
        target: the group to copy to; no member of it may be online.
        topic: only this topic; "": all except the retry topic.
        dry_run: return what would change, but change nothing.

    Raises:
        UsageError: when members of `target` are connected: their commits would undo it.
        NotFound: when `source` has committed nothing there.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    online = yield from connections(cluster, target)
    if online.value.members:
        raise UsageError(f"group {target} has members that are connected: stop them first")
    whole = yield from progress(cluster, source, topic)
    retries = RETRY_PREFIX + source
    rows = [row for row in whole.value.queues if row.queue.topic != retries]
    if not any(row.committed for row in rows):
        raise FoundNowhere(f"group {source} has committed nothing in {topic or 'any topic'}")
    brokers = yield from all_brokers(cluster)
    failures = dict(whole.failures)
    resets: list[QueueReset] = []
    for name in sorted({row.queue.topic for row in rows}):
        wanted = [row for row in rows if row.queue.topic == name]
        part = yield from _clone_topic(cluster, brokers, source, target, wanted, dry_run=dry_run)
        resets += part.value
        failures |= part.failures
    if failures and not resets:
        raise first_failure(failures)
    return ClusterReply(resets, failures)


def _clone_topic(
    cluster: AdminTarget,
    brokers: Brokers,
    source: str,
    target: str,
    rows: Sequence[QueueProgress],
    *,
    dry_run: bool,
) -> Flow[ClusterReply[list[QueueReset]]]:
    topic = rows[0].queue.topic
    there = {row.queue.broker_name for row in rows}
    asked = {name: broker for name, broker in brokers.items() if name in there}
    known = yield from offsets_in(cluster, asked, target, topic)
    before = {row.queue: row.committed for part in known.value.values() for row in part}
    after = {row.queue: row.committed for row in rows if row.queue in before}
    failures = dict(known.failures)
    if not dry_run:
        header = CloneGroupOffsetHeader(src_group=source, dest_group=target, topic=topic)
        command = request(RequestCode.CLONE_GROUP_OFFSET, header.to_ext())
        rest = {name: broker for name, broker in asked.items() if name not in failures}
        done = yield from ask_all(cluster, rest, command, succeeded, masters_only=True)
        told = {name: broker for name, broker in rest.items() if name in done.value}
        now = yield from offsets_in(cluster, told, target, topic)
        after = {row.queue: row.committed for part in now.value.values() for row in part}
        failures |= {**done.failures, **now.failures}
    resets = [
        QueueReset(queue=queue, before=before[queue], after=offset)
        for queue, offset in sorted(after.items())
    ]
    return ClusterReply(resets, failures)
